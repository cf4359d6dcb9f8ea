// The part of CUDA's driver interface that the software GPU has: types, numbers and prototypes, after the driver API's
// documentation. A build with -DWITH_CUDA_H takes NVIDIA's own header in its place, and holds the numbers to it.
#pragma once

#include <cstddef>

#define SOFTWARE_GPU_RESULTS(X)                                                                                       \
    X(CUDA_SUCCESS, 0)                                                                                                \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                                                    \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                                    \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                                                  \
    X(CUDA_ERROR_DEINITIALIZED, 4)                                                                                    \
    X(CUDA_ERROR_STUB_LIBRARY, 34)                                                                                    \
    X(CUDA_ERROR_NO_DEVICE, 100)                                                                                      \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                                                 \
    X(CUDA_ERROR_INVALID_IMAGE, 200)                                                                                  \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                                                \
    X(CUDA_ERROR_ALREADY_MAPPED, 208)                                                                                 \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                                              \
    X(CUDA_ERROR_INVALID_PTX, 218)                                                                                    \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)                                                                        \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                                               \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                                                 \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                                      \
    X(CUDA_ERROR_NOT_READY, 600)                                                                                      \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                                                \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)                                                                        \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                                           \
    X(CUDA_ERROR_ASSERT, 710)                                                                                         \
    X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                                                  \
    X(CUDA_ERROR_NOT_PERMITTED, 800)                                                                                  \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                                                  \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)

#define SOFTWARE_GPU_ATTRIBUTES(X)                                                                                    \
    X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1)                                                                   \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                                   \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                                               \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)

#define SOFTWARE_GPU_FLAGS(X)                                                                                         \
    X(CU_STREAM_DEFAULT, 0)                                                                                           \
    X(CU_STREAM_NON_BLOCKING, 1)                                                                                      \
    X(CU_EVENT_DEFAULT, 0)                                                                                            \
    X(CU_EVENT_BLOCKING_SYNC, 1)                                                                                      \
    X(CU_EVENT_DISABLE_TIMING, 2)                                                                                     \
    X(CU_EVENT_INTERPROCESS, 4)                                                                                       \
    X(CU_CTX_SCHED_SPIN, 1)                                                                                           \
    X(CU_CTX_SCHED_YIELD, 2)                                                                                          \
    X(CU_CTX_SCHED_BLOCKING_SYNC, 4)

#ifdef WITH_CUDA_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define X(NAME, VALUE) static_assert(static_cast<int>(NAME) == VALUE, #NAME);
SOFTWARE_GPU_RESULTS(X)
SOFTWARE_GPU_ATTRIBUTES(X)
SOFTWARE_GPU_FLAGS(X)
#undef X

#else

#define CUDAAPI

#define X(NAME, VALUE) NAME = VALUE,
enum CUresult : unsigned { SOFTWARE_GPU_RESULTS(X) };
enum CUdevice_attribute : unsigned { SOFTWARE_GPU_ATTRIBUTES(X) };
enum : unsigned { SOFTWARE_GPU_FLAGS(X) };
#undef X

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUhostFn = void (*)(void* userData);

struct CUuuid {
    char bytes[16];
};

struct CUipcMemHandle {
    char reserved[64];
};

#endif

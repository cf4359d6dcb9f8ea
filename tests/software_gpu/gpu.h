// The interface of the software GPU's libcuda for its cuBLASLt and its NVML, beside the one that NVIDIA documents.
#pragma once

#include "cuda_abi.h"

#include <cstdint>
#include <functional>
#include <string>

#define EXPORTED __attribute__((visibility("default")))

namespace software_gpu {

// Enqueues work, which returns a CUresult when it is done; a failure breaks the stream's context.
EXPORTED CUresult enqueue(CUstream stream, std::function<CUresult()> work);

// Host address of `size` bytes of device memory, while work of that context runs; null if they are not all allocated.
EXPORTED void* resolve(CUcontext context, CUdeviceptr pointer, size_t size);

// The context that is current on this thread.
EXPORTED CUcontext current();

// The context of a stream; null without such a stream.
EXPORTED CUcontext context_of(CUstream stream);

// Returns true if a failure of this kind is due now.
EXPORTED bool is_due(const char* kind);

// Writes a line about a call that the documentation forbids.
EXPORTED void misuse(const std::string& what);

// The number of a device by its UUID as nvidia-smi writes it; -1 without one.
EXPORTED int device_of(const char* uuid);

// Memory of a device, and its use by all contexts.
EXPORTED void memory_of(int device, uint64_t& total, uint64_t& used);

// Kernels and products that ran so far.
EXPORTED uint64_t launch_count();

}  // namespace software_gpu

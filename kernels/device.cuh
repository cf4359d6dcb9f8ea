// Shared by the kernels: types, formats of elements, and the threads that work together. Compiled by nvcc, and by a
// host compiler with tests/kernels/emulate.h before it, which defines the words of CUDA that are used here.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

#ifndef EMULATED
extern __shared__ uint4 dynamic_shared[];
#define SHARED_MEMORY reinterpret_cast<u8*>(dynamic_shared)
#endif

constexpr u32 WARP_LANES = 32;
constexpr u32 ALL_LANES = 0xffffffff;

// Threads that do one piece of work together: a warp where SIZE is 32, else the whole block.
template <u32 SIZE>
struct Lanes {
    static constexpr bool IS_WARP = SIZE == WARP_LANES;

    static __device__ u32 index() { return IS_WARP ? threadIdx.x % WARP_LANES : threadIdx.x; }

    // Makes writes of every lane before it visible to all lanes after it.
    static __device__ void wait() {
        if (IS_WARP) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    }

    // The number of lanes with the property. Does not order their writes.
    static __device__ u32 count(bool holds) {
        return IS_WARP ? __popc(__ballot_sync(ALL_LANES, holds)) : __syncthreads_count(holds);
    }

    // Waits, and returns true if any lane has the property.
    static __device__ bool any(bool holds) {
        if (!IS_WARP) {
            return __syncthreads_or(holds);
        }
        // A vote does not order memory.
        __syncwarp();
        return __any_sync(ALL_LANES, holds);
    }
};

// Meaning of an element's bits; `FloatFormat` in crates/backend/src/kernel/pointwise.rs.
enum Format : u32 { FP16 = 4, BF16 = 5, FP32 = 6 };

__device__ inline float float_of_bits(u32 bits) { return __uint_as_float(bits); }

__device__ inline float float_of_half(u16 bits) {
#ifdef EMULATED
    return emulated_float_of_half(bits);
#else
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
#endif
}

__device__ inline u16 half_of_float(float value) {
#ifdef EMULATED
    return emulated_half_of_float(value);
#else
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
}

// Rounds to nearest, ties to even; NaN stays NaN (and quiet). The instruction for it needs sm_80.
__device__ inline u16 brain_of_float(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return static_cast<u16>(bits >> 16 | 0x40);
    }
    return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__device__ inline float read_float(const void* base, u64 index, u32 format) {
    switch (format) {
        case FP16: return float_of_half(static_cast<const u16*>(base)[index]);
        case BF16: return float_of_bits(static_cast<u32>(static_cast<const u16*>(base)[index]) << 16);
        default: return static_cast<const float*>(base)[index];
    }
}

__device__ inline void write_float(void* base, u64 index, u32 format, float value) {
    switch (format) {
        case FP16: static_cast<u16*>(base)[index] = half_of_float(value); break;
        case BF16: static_cast<u16*>(base)[index] = brain_of_float(value); break;
        default: static_cast<float*>(base)[index] = value; break;
    }
}

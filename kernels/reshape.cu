// Rows of requests that lie on the device into one batch and back, and boxes of elements within the rows of a batch.
// Each part (the tensor of a request, as a rule) has its line of blocks; a table in device memory says which part
// belongs where. The tables and the parameters are written by crates/backend/src/kernel/reshape.rs.

#include "device.cuh"

constexpr u32 RESHAPE_THREADS = 256;

// Bytes in one piece.
struct CopyPart {
    u64 source;  // bytes after `input`
    u64 target;  // bytes after `output`
    u64 size;
};

template <class Word>
__device__ void copy_words(const u8* source, u8* target, u64 size) {
    const u64 count = size / sizeof(Word);
    const u64 step = static_cast<u64>(gridDim.x) * RESHAPE_THREADS;
    const u64 start = static_cast<u64>(blockIdx.x) * RESHAPE_THREADS + threadIdx.x;
#pragma unroll 4
    for (u64 i = start; i < count; i += step) {
        reinterpret_cast<Word*>(target)[i] = reinterpret_cast<const Word*>(source)[i];
    }
    for (u64 i = count * sizeof(Word) + start; i < size; i += step) {
        target[i] = source[i];
    }
}

extern "C" __global__ void __launch_bounds__(RESHAPE_THREADS)
    reshape_copy(const u8* input, u8* output, const CopyPart* parts) {
    const CopyPart part = parts[blockIdx.y];
    const u8* const source = input + part.source;
    u8* const target = output + part.target;
    const u64 alignment = reinterpret_cast<u64>(source) | reinterpret_cast<u64>(target);
    if (alignment % 16 == 0) {
        copy_words<uint4>(source, target, part.size);
    } else if (alignment % 4 == 0) {
        copy_words<u32>(source, target, part.size);
    } else {
        copy_words<u8>(source, target, part.size);
    }
}

constexpr u32 RANK_MAX = 6;

// A box of elements of four bytes. Strides count elements.
struct BoxPart {
    u64 source;  // bytes after `input`
    u64 target;  // bytes after `output`
    i64 source_strides[RANK_MAX];
    i64 target_strides[RANK_MAX];
    u32 extents[RANK_MAX];
};

extern "C" __global__ void __launch_bounds__(RESHAPE_THREADS)
    reshape_box(const u8* input, u8* output, const BoxPart* parts, u32 rank) {
    // Every element needs the part's shape.
    BoxPart& part = *reinterpret_cast<BoxPart*>(SHARED_MEMORY);
    for (u32 i = threadIdx.x; i < sizeof(BoxPart) / sizeof(u64); i += RESHAPE_THREADS) {
        reinterpret_cast<u64*>(SHARED_MEMORY)[i] = reinterpret_cast<const u64*>(parts + blockIdx.y)[i];
    }
    __syncthreads();
    const u32* const source = reinterpret_cast<const u32*>(input + part.source);
    u32* const target = reinterpret_cast<u32*>(output + part.target);
    u32 count = 1;
    for (u32 axis = 0; axis < rank; axis++) {
        count *= part.extents[axis];
    }
    for (u64 i = static_cast<u64>(blockIdx.x) * RESHAPE_THREADS + threadIdx.x; i < count;
         i += static_cast<u64>(gridDim.x) * RESHAPE_THREADS) {
        u32 rest = static_cast<u32>(i);
        i64 from = 0;
        i64 to = 0;
        for (u32 axis = rank; axis-- > 0;) {
            const u32 extent = part.extents[axis];
            const u32 place = rest % extent;
            rest /= extent;
            from += place * part.source_strides[axis];
            to += place * part.target_strides[axis];
        }
        target[to] = source[from];
    }
}

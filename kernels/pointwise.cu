// Operations of a dense network other than matrix products: activations, bias and other operands that are repeated
// along an axis, softmax. FP32, FP16 and BF16, computed in FP32. The launches are planned, and the numbers of
// operations given, in crates/backend/src/kernel/pointwise.rs.

#include "device.cuh"

constexpr u32 POINTWISE_THREADS = 256;

enum Activation : u32 { NONE = 0, RELU = 1, SIGMOID = 2, TANH = 3, GELU = 4, GELU_TANH = 5 };

__device__ inline float activated(float x, u32 activation) {
    switch (activation) {
        // NaN stays NaN.
        case RELU: return x < 0.0f ? 0.0f : x;
        case SIGMOID: return 1.0f / (1.0f + expf(-x));
        case TANH: return tanhf(x);
        case GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        default: return x;
    }
}

enum Operation : u32 { ADD = 0, SUBTRACT = 1, MULTIPLY = 2, DIVIDE = 3 };

__device__ inline float combined(float left, float right, u32 operation) {
    switch (operation) {
        case SUBTRACT: return left - right;
        case MULTIPLY: return left * right;
        case DIVIDE: return left / right;
        default: return left + right;
    }
}

extern "C" __global__ void __launch_bounds__(POINTWISE_THREADS)
    pointwise_activation(const void* input, void* output, u64 count, u32 activation, u32 format) {
    const u64 step = static_cast<u64>(gridDim.x) * POINTWISE_THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * POINTWISE_THREADS + threadIdx.x; i < count; i += step) {
        write_float(output, i, format, activated(read_float(input, i, format), activation));
    }
}

// output[row, column] = activation(left operation right), each operand by strides of its own: 0 repeats it.
extern "C" __global__ void __launch_bounds__(POINTWISE_THREADS)
    pointwise_binary(const void* left, const void* right, void* output, u32 rows, u32 columns, u32 left_row_stride,
                     u32 left_column_stride, u32 right_row_stride, u32 right_column_stride, u32 operation,
                     u32 activation, u32 format) {
    const u64 count = static_cast<u64>(rows) * columns;
    const u64 step = static_cast<u64>(gridDim.x) * POINTWISE_THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * POINTWISE_THREADS + threadIdx.x; i < count; i += step) {
        const u64 row = i / columns;
        const u64 column = i - row * columns;
        const float a = read_float(left, row * left_row_stride + column * left_column_stride, format);
        const float b = read_float(right, row * right_row_stride + column * right_column_stride, format);
        write_float(output, i, format, activated(combined(a, b, operation), activation));
    }
}

// The sum, or the largest, over the lanes of a group; all get it. NaN is never the maximum.
template <u32 SIZE, bool IS_SUM>
__device__ float reduced(float value, float* memory) {
#pragma unroll
    for (u32 step = 1; step < WARP_LANES; step *= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, value, step);
        value = IS_SUM ? value + other : fmaxf(value, other);
    }
    if (SIZE == WARP_LANES) {
        return value;
    }
    if (threadIdx.x % WARP_LANES == 0) {
        memory[threadIdx.x / WARP_LANES] = value;
    }
    __syncthreads();
    value = memory[0];
    for (u32 warp = 1; warp < SIZE / WARP_LANES; warp++) {
        value = IS_SUM ? value + memory[warp] : fmaxf(value, memory[warp]);
    }
    // The memory is used again.
    __syncthreads();
    return value;
}

// A row with NaN, or with an infinity as its largest value, has no softmax: all of it becomes NaN.
template <u32 SIZE>
__device__ void softmax(const void* input, void* output, u64 row, u32 columns, u32 format) {
    float* const memory = reinterpret_cast<float*>(SHARED_MEMORY);
    const u32 lane = Lanes<SIZE>::index();
    const u64 start = row * columns;
    float largest = -INFINITY;
    for (u32 column = lane; column < columns; column += SIZE) {
        largest = fmaxf(largest, read_float(input, start + column, format));
    }
    largest = reduced<SIZE, false>(largest, memory);
    float sum = 0.0f;
    for (u32 column = lane; column < columns; column += SIZE) {
        sum += expf(read_float(input, start + column, format) - largest);
    }
    sum = reduced<SIZE, true>(sum, memory);
    for (u32 column = lane; column < columns; column += SIZE) {
        const float value = expf(read_float(input, start + column, format) - largest) / sum;
        write_float(output, start + column, format, value);
    }
}

constexpr u32 SOFTMAX_WARP_THREADS = 128;

extern "C" __global__ void __launch_bounds__(SOFTMAX_WARP_THREADS)
    softmax_warp(const void* input, void* output, u32 rows, u32 columns, u32 format) {
    const u64 row = static_cast<u64>(blockIdx.x) * (SOFTMAX_WARP_THREADS / WARP_LANES) + threadIdx.x / WARP_LANES;
    if (row < rows) {
        softmax<WARP_LANES>(input, output, row, columns, format);
    }
}

extern "C" __global__ void __launch_bounds__(POINTWISE_THREADS)
    softmax_block(const void* input, void* output, u32 rows, u32 columns, u32 format) {
    if (blockIdx.x < rows) {
        softmax<POINTWISE_THREADS>(input, output, blockIdx.x, columns, format);
    }
}

// The words of CUDA that kernels/*.cu use, for a host compiler. A block's threads are fibers, of which one runs until
// it meets the others: at a barrier, or in a warp for a shuffle or a vote. The next one to run is drawn from a seed,
// and in half of the blocks a warp runs as far ahead as it can, so that work which only comes out right in one order is
// found. A thread that waits for one that ended, lanes of a warp that meet for different things, and memory outside of
// a buffer end the run.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define EMULATED
#define __device__
#define __global__
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace emulated {

constexpr unsigned WARP = 32;
constexpr size_t STACK_SIZE = 64 * 1024;

// A process that runs kernels for its own purpose takes failures here, and does not return.
inline thread_local void (*on_failure)(const char* why) = nullptr;

[[noreturn]] inline void fail(const char* why) {
    if (on_failure != nullptr) {
        on_failure(why);
    }
    std::fprintf(stderr, "emulation: %s\n", why);
    std::_Exit(3);
}

// A barrier of threads; the value of each is there for all until all come again.
struct Meeting {
    const char* purpose = nullptr;
    unsigned arrived = 0;
    uint64_t turn = 0;
    std::vector<uint64_t> brought, seen;
};

struct Thread {
    uint3 index{};
    ucontext_t start{};
    jmp_buf place{};
    bool has_begun = false;
    std::unique_ptr<char[]> stack;
    const Meeting* waits_at = nullptr;
    uint64_t turn = 0;
    bool has_ended = false;
};

// One block at a time on a thread.
struct Block {
    uint3 index{}, grid{}, size{};
    unsigned char* shared = nullptr;
    std::vector<Thread> threads;
    Meeting all;
    std::vector<Meeting> warps;
    Thread* running = nullptr;
    jmp_buf scheduler{};
    std::function<void()> kernel;
};

inline thread_local Block block;

// Waits until all threads of the meeting have brought a value. Returns the values by their place.
inline const std::vector<uint64_t>& meet(Meeting& meeting, const char* purpose, unsigned place, uint64_t value) {
    if (meeting.arrived != 0 && std::strcmp(meeting.purpose, purpose) != 0) {
        fail("threads that work together are at different places");
    }
    meeting.purpose = purpose;
    meeting.brought[place] = value;
    if (++meeting.arrived == meeting.brought.size()) {
        meeting.seen = meeting.brought;
        meeting.arrived = 0;
        meeting.turn++;
        return meeting.seen;
    }
    Thread& self = *block.running;
    self.waits_at = &meeting;
    self.turn = meeting.turn;
    if (_setjmp(self.place) == 0) {
        _longjmp(block.scheduler, 1);
    }
    return meeting.seen;
}

inline const std::vector<uint64_t>& meet_block(const char* purpose, uint64_t value) {
    return meet(block.all, purpose, block.running->index.x, value);
}

inline const std::vector<uint64_t>& meet_warp(unsigned mask, const char* purpose, uint64_t value) {
    if (mask != 0xffffffff) {
        fail("only whole warps meet");
    }
    const unsigned thread = block.running->index.x;
    return meet(block.warps[thread / WARP], purpose, thread % WARP, value);
}

template <class Value>
uint64_t pack(Value value) {
    static_assert(sizeof(Value) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class Value>
Value unpack(uint64_t bits) {
    Value value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline void enter() {
    block.kernel();
    block.running->has_ended = true;
    _longjmp(block.scheduler, 1);
}

// Lets a thread run until it waits or ends. Contexts begin it; from then on jumps, which cost no system call.
inline void resume(Thread& thread) {
    block.running = &thread;
    if (_setjmp(block.scheduler) != 0) {
        return;
    }
    if (thread.has_begun) {
        _longjmp(thread.place, 1);
    }
    thread.has_begun = true;
    setcontext(&thread.start);
}

// Runs each thread that can run. Returns true if any could.
inline bool run_those_that_can(Thread** threads, size_t count) {
    bool has_moved = false;
    for (size_t i = 0; i < count; i++) {
        Thread& thread = *threads[i];
        const bool waits = thread.waits_at != nullptr && thread.waits_at->turn == thread.turn;
        if (!waits && !thread.has_ended) {
            thread.waits_at = nullptr;
            resume(thread);
            has_moved = true;
        }
    }
    return has_moved;
}

inline uint64_t draw(uint64_t& seed) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

inline void shuffle(Thread** threads, size_t count, uint64_t& seed) {
    for (size_t left = count; left > 1; left--) {
        std::swap(threads[left - 1], threads[draw(seed) % left]);
    }
}

inline void run_block(uint64_t& seed) {
    std::vector<Thread*> order;
    for (Thread& thread : block.threads) {
        thread.waits_at = nullptr;
        thread.has_begun = false;
        thread.has_ended = false;
        getcontext(&thread.start);
        thread.start.uc_stack.ss_sp = thread.stack.get();
        thread.start.uc_stack.ss_size = STACK_SIZE;
        makecontext(&thread.start, enter, 0);
        order.push_back(&thread);
    }
    // One step of all threads, or a warp as far as it gets.
    const size_t group = draw(seed) % 2 == 0 ? order.size() : WARP;
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        const size_t first = draw(seed) % (order.size() / group);
        for (size_t i = 0; i < order.size() / group; i++) {
            Thread** const threads = &order[(first + i) % (order.size() / group) * group];
            shuffle(threads, group, seed);
            while (run_those_that_can(threads, group)) {
                has_moved = true;
                shuffle(threads, group, seed);
            }
        }
    }
    if (!std::all_of(order.begin(), order.end(), [](const Thread* thread) { return thread->has_ended; })) {
        fail("threads wait for one that ended, or that waits elsewhere");
    }
}

// Runs the kernel on each block, in any order; `shared` is the shared memory of each, with the leftovers of others.
inline void run(uint3 grid, unsigned threads, unsigned char* shared, size_t shared_size, uint64_t seed,
                const std::function<void()>& kernel) {
    if (threads % WARP != 0) {
        fail("a block is whole warps");
    }
    block.grid = grid;
    block.size = {threads, 1, 1};
    block.shared = shared;
    block.kernel = kernel;
    while (block.threads.size() < threads) {
        block.threads.emplace_back();
        block.threads.back().stack.reset(new char[STACK_SIZE]);
        block.threads.back().index = {static_cast<unsigned>(block.threads.size() - 1), 0, 0};
    }
    block.threads.resize(threads);
    block.all.brought.assign(threads, 0);
    block.all.arrived = 0;
    block.warps.resize(threads / WARP);
    for (Meeting& warp : block.warps) {
        warp.brought.assign(WARP, 0);
        warp.arrived = 0;
    }
    std::vector<uint3> blocks;
    for (unsigned y = 0; y < grid.y; y++) {
        for (unsigned x = 0; x < grid.x; x++) {
            blocks.push_back({x, y, 0});
        }
    }
    seed |= 1;
    for (size_t left = blocks.size(); left > 0; left--) {
        std::swap(blocks[left - 1], blocks[draw(seed) % left]);
        block.index = blocks[left - 1];
        std::memset(shared, 0xcd, shared_size);
        run_block(seed);
    }
}

}  // namespace emulated

#define threadIdx (emulated::block.running->index)
#define blockIdx (emulated::block.index)
#define gridDim (emulated::block.grid)
#define SHARED_MEMORY (emulated::block.shared)

inline void __syncthreads() { emulated::meet_block("__syncthreads", 0); }

inline int __syncthreads_count(int holds) {
    const auto& brought = emulated::meet_block("__syncthreads_count", holds != 0);
    return static_cast<int>(std::count(brought.begin(), brought.end(), 1u));
}

inline int __syncthreads_or(int holds) {
    const auto& brought = emulated::meet_block("__syncthreads_or", holds != 0);
    return std::count(brought.begin(), brought.end(), 1u) != 0;
}

inline void __syncwarp() { emulated::meet_warp(0xffffffff, "__syncwarp", 0); }

inline unsigned __ballot_sync(unsigned mask, int holds) {
    const auto& brought = emulated::meet_warp(mask, "__ballot_sync", holds != 0);
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < emulated::WARP; lane++) {
        ballot |= static_cast<unsigned>(brought[lane]) << lane;
    }
    return ballot;
}

inline int __any_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) != 0; }

template <class Value>
Value __shfl_sync(unsigned mask, Value value, unsigned lane) {
    return emulated::unpack<Value>(emulated::meet_warp(mask, "__shfl_sync", emulated::pack(value))[lane % 32]);
}

template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, unsigned lanes) {
    const unsigned lane = threadIdx.x % emulated::WARP ^ lanes;
    return emulated::unpack<Value>(emulated::meet_warp(mask, "__shfl_xor_sync", emulated::pack(value))[lane]);
}

inline unsigned atomicAdd(unsigned* address, unsigned value) {
    const unsigned before = *address;
    *address += value;
    return before;
}

template <class Value>
Value __ldg(const Value* address) {
    return *address;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline float __uint_as_float(unsigned bits) { return emulated::unpack<float>(bits); }
inline unsigned __float_as_uint(float value) { return static_cast<unsigned>(emulated::pack(value)); }

// The conversion `cvt.f32.f16`.
inline float emulated_float_of_half(uint16_t bits) {
    const int exponent = bits >> 10 & 0x1f;
    const int fraction = bits & 0x3ff;
    float size = std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 31) {
        size = fraction == 0 ? INFINITY : NAN;
    } else if (exponent > 0) {
        size = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    }
    return bits & 0x8000 ? -size : size;
}

// The conversion `cvt.rn.f16.f32`: to nearest, ties to even.
inline uint16_t emulated_half_of_float(float value) {
    if (std::isnan(value)) {
        return 0x7fff;
    }
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(static_cast<double>(value));
    if (size >= 65520.0) {
        return sign | 0x7c00;
    }
    // Halves are multiples of 2^-24, or of more if they are larger; their bits count up from one to the next.
    const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
    const double steps = std::nearbyint(std::ldexp(size, 10 - exponent));
    return sign | static_cast<uint16_t>(((exponent + 14) << 10) + static_cast<int>(steps));
}

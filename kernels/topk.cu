// The best `count` of each row, best first; equal ones by index; -0 equals 0; NaN comes last.
//
// A row is read once, 16 bytes a lane. Of each such vector only the best key is kept. The 32 lanes' (or 32 groups of
// lanes') best give a bound: `count` different elements are at least as good as the count-th of them. Vectors that
// reach the bound, a few, are read again out of the cache, and their elements become candidates in shared memory. Where
// candidates become too many they are sorted, the best `count` stay, and the last of those is the new bound. So any
// input comes out right, and usual ones cost one reading. docs/decisions/0009-top-k-on-the-gpu.md has more.
//
// The launches are planned, and every parameter is named, in crates/backend/src/kernel/topk.rs.

#include "device.cuh"

// An element by its order key, larger is better, and the complement of its index, so that the lower index is better. No
// index is 2^32 - 1, so that no element is the candidate of zeros.
struct Narrow {
    using Key = u32;
    u64 bits;

    static __device__ Narrow make(u32 key, u32 index) { return {static_cast<u64>(key) << 32 | ~index}; }
    static __device__ Narrow none() { return {0}; }
    __device__ bool is_none() const { return bits == 0; }
    __device__ bool is_better(Narrow other) const { return bits > other.bits; }
    __device__ u32 index() const { return ~static_cast<u32>(bits); }
    __device__ Narrow of_lane(u32 lane) const { return {__shfl_sync(ALL_LANES, bits, lane)}; }
    __device__ Narrow of_other(u32 mask) const { return {__shfl_xor_sync(ALL_LANES, bits, mask)}; }
};

// Sorts the candidates of a warp's 32 lanes, best first. Unrolled where it is a good part of the work.
template <class Candidate, bool IS_HOT>
__device__ Candidate sorted_over_lanes(Candidate mine) {
    const u32 lane = threadIdx.x % WARP_LANES;
#pragma unroll(IS_HOT ? 5 : 1)
    for (u32 span = 2; span <= WARP_LANES; span *= 2) {
#pragma unroll(IS_HOT ? 5 : 1)
        for (u32 step = span / 2; step > 0; step /= 2) {
            const Candidate other = mine.of_other(step);
            const bool keeps_better = ((lane & step) == 0) == ((lane & span) == 0);
            if (other.is_better(mine) == keeps_better) {
                mine = other;
            }
        }
    }
    return mine;
}

// The candidates of one row, or of a segment of one, that SIZE lanes select among.
template <class Candidate, u32 SIZE>
struct Selection {
    using Group = Lanes<SIZE>;

    const u32 lane = Group::index();
    const u32 count;
    const u32 capacity;  // a power of two, at least count + 32
    Candidate* const candidates;
    Candidate* const maxima;
    u32* const filled;
    Candidate bound = Candidate::none();  // candidates worse than this are not among the best

    __device__ Selection(u8* memory, u32 count, u32 capacity)
        : count(count),
          capacity(capacity),
          candidates(reinterpret_cast<Candidate*>(memory)),
          maxima(candidates + capacity),
          filled(reinterpret_cast<u32*>(maxima + WARP_LANES)) {
        if (lane == 0) {
            *filled = 0;
        }
        Group::wait();
    }

    static __device__ u32 memory_size(u32 capacity) { return (capacity + WARP_LANES) * sizeof(Candidate) + 16; }

    __device__ bool is_wanted(Candidate candidate) const { return !candidate.is_none() && !bound.is_better(candidate); }

    // Takes the best candidate of each lane, and whether the lane has further, unknown ones. Returns true if any lane
    // has a wanted one. Raises the bound if many have.
    __device__ bool offer(Candidate best, bool has_more) {
        const u32 wanted = Group::count(has_more || is_wanted(best));
        if (wanted > count && count <= WARP_LANES) {
            raise(best);
        }
        return wanted > 0;
    }

    // Reserves memory for `wanted` candidates. Returns false if it is full; the candidates then wait for is_full().
    __device__ bool reserve(u32 wanted, u32& at) {
        if (wanted == 0) {
            return true;
        }
        at = atomicAdd(filled, wanted);
        if (at + wanted <= capacity) {
            return true;
        }
#pragma unroll 1
        for (; at < capacity; at++) {
            candidates[at] = Candidate::none();
        }
        return false;
    }

    // Called once each lane has written as many as it could. Returns true if some must be tried again, after making
    // room for them.
    __device__ bool is_full(bool has_more) {
        if (!Group::any(has_more)) {
            return false;
        }
        sort(capacity);
        const Candidate last = candidates[count - 1];
        if (last.is_better(bound)) {
            bound = last;
        }
        if (lane == 0) {
            *filled = count;
        }
        Group::wait();
        return true;
    }

    // Puts the best first.
    __device__ void finish() {
        Group::wait();
        const u32 found = *filled;
        if (found <= WARP_LANES) {
            if (threadIdx.x < WARP_LANES || Group::IS_WARP) {
                const Candidate mine = lane < found ? candidates[lane] : Candidate::none();
                candidates[lane] = sorted_over_lanes<Candidate, Group::IS_WARP>(mine);
            }
            Group::wait();
        } else {
            u32 size = 2 * WARP_LANES;
            while (size < found) {
                size *= 2;
            }
#pragma unroll 1
            for (u32 i = found + lane; i < size; i += SIZE) {
                candidates[i] = Candidate::none();
            }
            Group::wait();
            sort(size);
        }
    }

   private:
    // Raises the bound to the count-th best among the best of 32 groups of lanes: at least `count` elements are as
    // good.
    __device__ void raise(Candidate best) {
#pragma unroll
        for (u32 step = 1; step < SIZE / WARP_LANES; step *= 2) {
            const Candidate other = best.of_other(step);
            if (other.is_better(best)) {
                best = other;
            }
        }
        if (!Group::IS_WARP) {
            if (lane % (SIZE / WARP_LANES) == 0) {
                maxima[lane / (SIZE / WARP_LANES)] = best;
            }
            Group::wait();
            best = maxima[lane % WARP_LANES];
        }
        const Candidate last = sorted_over_lanes<Candidate, Group::IS_WARP>(best).of_lane(count - 1);
        if (last.is_better(bound)) {
            bound = last;
        }
    }

    // Bitonic, best first.
    __device__ void sort(u32 size) {
#pragma unroll 1
        for (u32 span = 2; span <= size; span *= 2) {
#pragma unroll 1
            for (u32 step = span / 2; step > 0; step /= 2) {
#pragma unroll 1
                for (u32 i = lane; i < size / 2; i += SIZE) {
                    const u32 low = 2 * i - (i & (step - 1));
                    const Candidate left = candidates[low];
                    const Candidate right = candidates[low + step];
                    if (right.is_better(left) == ((low & span) == 0)) {
                        candidates[low] = right;
                        candidates[low + step] = left;
                    }
                }
                Group::wait();
            }
        }
    }
};

// Elements of one width: how vectors of 16 bytes hold them, and how many vectors a lane takes at a time.
template <u32 BITS>
struct Elements;

template <>
struct Elements<32> {
    using Element = u32;
    using Candidate = Narrow;
    static constexpr u32 VECTORS = 8;
};

// Order of bits: as integers, one exclusive or away from unsigned ones, or as floats.
template <u32 BITS>
struct Order {
    using Key = typename Elements<BITS>::Candidate::Key;
    static constexpr Key SIGN = static_cast<Key>(1) << (BITS - 1);

    const bool is_float;
    const Key flip;      // the sign bit, if there is one
    const Key infinity;  // above this, without its sign, a float is NaN

    // 0 unsigned, 1 signed, 2 FP32.
    __device__ explicit Order(u32 order)
        : is_float(order >= 2), flip(order == 0 ? 0 : SIGN), infinity(static_cast<Key>(0x7f800000)) {}

    __device__ Key integer_key(Key bits) const { return bits ^ flip; }

    // No number has the key 0: it belongs to the empty candidate.
    __device__ Key float_key(Key bits) const {
        // Sign and magnitude become one number, of which both zeros are the middle.
        const Key magnitude = bits & (SIGN - 1);
        const Key negative = 0 - (bits >> (BITS - 1));
        const Key ordered = (magnitude ^ negative) - negative + SIGN;
        return magnitude > infinity ? 0 : ordered;
    }
};

// Some consecutive elements of one row. Vectors begin on 16 bytes of memory, so that the first and the last may reach
// beyond the segment: those are not read as vectors.
template <u32 BITS>
struct Segment {
    using Element = typename Elements<BITS>::Element;
    using Candidate = typename Elements<BITS>::Candidate;
    using Key = typename Candidate::Key;
    static constexpr u32 PER_VECTOR = 128 / BITS;

    const Order<BITS> order;
    const Element* elements;  // the first of its first vector
    u32 lead;                 // elements of the first vector that lie before the segment
    u32 size;                 // its elements
    u32 base;                 // the index, in the row, of its first

    __device__ Segment(const void* input, u64 begin, u32 size, u32 base, u32 order)
        : order(order), size(size), base(base) {
        lead = static_cast<u32>(begin % PER_VECTOR);
        elements = static_cast<const Element*>(input) + (begin - lead);
    }

    __device__ u32 vector_count() const { return (lead + size + PER_VECTOR - 1) / PER_VECTOR; }

    // Returns true if all of the vector lies in the segment.
    __device__ bool is_whole(u32 vector) const {
        return vector * PER_VECTOR >= lead && (vector + 1) * PER_VECTOR <= lead + size;
    }

    __device__ uint4 read(u32 vector) const { return __ldg(reinterpret_cast<const uint4*>(elements) + vector); }

    // Returns true if the vector's element lies in the segment.
    __device__ bool has(u32 vector, u32 i) const { return vector * PER_VECTOR + i - lead < size; }

    // The index of the vector's element in the row.
    __device__ u32 index(u32 vector, u32 i) const { return base + vector * PER_VECTOR + i - lead; }

    // The vector's element, read alone.
    __device__ Candidate candidate(u32 vector, u32 i) const {
        const Key bits = __ldg(elements + vector * PER_VECTOR + i);
        return Candidate::make(order.is_float ? order.float_key(bits) : order.integer_key(bits), index(vector, i));
    }

    // The best key of a whole vector.
    __device__ Key best(const uint4& words) const {
        Key best = 0;
        if (order.is_float) {
#pragma unroll
            for (u32 i = 0; i < PER_VECTOR; i++) {
                const Key key = order.float_key(bits(words, i));
                best = key > best ? key : best;
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < PER_VECTOR; i++) {
                const Key key = order.integer_key(bits(words, i));
                best = key > best ? key : best;
            }
        }
        return best;
    }

   private:
    static __device__ Key bits(const uint4& words, u32 i) {
        const u32 word[4] = {words.x, words.y, words.z, words.w};
        return word[i];
    }
};

// Puts the best of a segment to the front of the selection's candidates.
template <u32 BITS, u32 SIZE>
__device__ void select(Selection<typename Elements<BITS>::Candidate, SIZE>& selection, const Segment<BITS>& segment) {
    using Candidate = typename Elements<BITS>::Candidate;
    using Key = typename Candidate::Key;
    constexpr u32 VECTORS = Elements<BITS>::VECTORS;
    constexpr u32 READS = VECTORS < 4 ? VECTORS : 4;
    constexpr u32 PER_VECTOR = 128 / BITS;
    const u32 vector_count = segment.vector_count();

    for (u32 tile = 0; tile < vector_count; tile += SIZE * VECTORS) {
        const u32 first = tile + selection.lane;
        Key best[VECTORS];
        Candidate best_of_all = Candidate::none();
        u32 pending = 0;
#pragma unroll
        for (u32 batch = 0; batch < VECTORS; batch += READS) {
            uint4 words[READS];
#pragma unroll
            for (u32 i = 0; i < READS; i++) {
                if (segment.is_whole(first + (batch + i) * SIZE)) {
                    words[i] = segment.read(first + (batch + i) * SIZE);
                }
            }
#pragma unroll
            for (u32 i = 0; i < READS; i++) {
                const u32 vector = first + (batch + i) * SIZE;
                if (segment.is_whole(vector)) {
                    best[batch + i] = segment.best(words[i]);
                    // As if it were the vector's last element: not better than it is, which keeps the bound true.
                    const Candidate candidate =
                        Candidate::make(best[batch + i], segment.index(vector, PER_VECTOR - 1));
                    best_of_all = candidate.is_better(best_of_all) ? candidate : best_of_all;
                } else if (vector < vector_count) {
                    pending |= 1u << (batch + i);
                }
            }
        }
        if (!selection.offer(best_of_all, pending != 0)) {
            continue;
        }
#pragma unroll
        for (u32 i = 0; i < VECTORS; i++) {
            const u32 vector = first + i * SIZE;
            // As if it were the first element: not worse than it is, so that no candidate is lost.
            if (segment.is_whole(vector) && selection.is_wanted(Candidate::make(best[i], segment.index(vector, 0)))) {
                pending |= 1u << i;
            }
        }
        do {
#pragma unroll 1
            for (u32 rest = pending; rest != 0; rest &= rest - 1) {
                const u32 i = __ffs(rest) - 1;
                const u32 vector = first + i * SIZE;
                u32 wanted = 0;
#pragma unroll(PER_VECTOR < 4 ? PER_VECTOR : 4)
                for (u32 j = 0; j < PER_VECTOR; j++) {
                    if (segment.has(vector, j) && selection.is_wanted(segment.candidate(vector, j))) {
                        wanted |= 1u << j;
                    }
                }
                u32 at = 0;
                if (selection.reserve(__popc(wanted), at)) {
                    pending ^= 1u << i;
#pragma unroll 1
                    for (; wanted != 0; wanted &= wanted - 1) {
                        selection.candidates[at++] = segment.candidate(vector, __ffs(wanted) - 1);
                    }
                }
            }
        } while (selection.is_full(pending != 0));
    }
    selection.finish();
}

// Writes the best of a row, whose values are read again, bit for bit.
template <class Element, class Selection>
__device__ void write(const Selection& selection, const void* input, u64 classes, u64 row, u32 stride, void* values,
                      void* indices, u32 index_size) {
#pragma unroll 1
    for (u32 i = selection.lane; i < selection.count; i += stride) {
        const u32 index = selection.candidates[i].index();
        const u64 at = row * selection.count + i;
        if (values != nullptr) {
            static_cast<Element*>(values)[at] = static_cast<const Element*>(input)[row * classes + index];
        }
        if (index_size == 8) {
            static_cast<i64*>(indices)[at] = index;
        } else {
            static_cast<u32*>(indices)[at] = index;
        }
    }
}

constexpr u32 WARP_THREADS = 128;
constexpr u32 WARP_CAPACITY = 128;
constexpr u32 BLOCK_THREADS = 256;

// A warp for each row; count is at most 32.
template <u32 BITS>
__device__ void by_warp(const void* input, void* values, void* indices, u32 rows, u32 classes, u32 count, u32 order,
                        u32 index_size) {
    using Candidate = typename Elements<BITS>::Candidate;
    using Selecting = Selection<Candidate, WARP_LANES>;
    const u32 warp = threadIdx.x / WARP_LANES;
    const u64 row = static_cast<u64>(blockIdx.x) * (WARP_THREADS / WARP_LANES) + warp;
    if (row >= rows) {
        return;
    }
    Selecting selection(SHARED_MEMORY + warp * Selecting::memory_size(WARP_CAPACITY), count, WARP_CAPACITY);
    const Segment<BITS> segment(input, row * classes, classes, 0, order);
    select<BITS, WARP_LANES>(selection, segment);
    write<typename Elements<BITS>::Element>(selection, input, classes, row, WARP_LANES, values, indices, index_size);
}

// A block for each segment of a row, which holds `count` elements at least. If a row has several, their best go to
// scratch.
template <u32 BITS>
__device__ void by_block(const void* input, void* values, void* indices, void* scratch, u32 classes, u32 count,
                         u32 order, u32 index_size, u32 segments, u32 capacity) {
    using Candidate = typename Elements<BITS>::Candidate;
    Selection<Candidate, BLOCK_THREADS> selection(SHARED_MEMORY, count, capacity);
    const u64 row = blockIdx.x / segments;
    const u32 size = (classes + segments - 1) / segments;
    const u32 base = blockIdx.x % segments * size;
    const u32 left = base < classes ? classes - base : 0;
    const Segment<BITS> segment(input, row * classes + base, left < size ? left : size, base, order);
    select<BITS, BLOCK_THREADS>(selection, segment);
    if (segments == 1) {
        write<typename Elements<BITS>::Element>(selection, input, classes, row, BLOCK_THREADS, values, indices,
                                                index_size);
        return;
    }
    Candidate* const kept = static_cast<Candidate*>(scratch) + static_cast<u64>(blockIdx.x) * count;
#pragma unroll 1
    for (u32 i = selection.lane; i < count; i += BLOCK_THREADS) {
        kept[i] = selection.candidates[i];
    }
}

// A block for each row, over what its segments kept.
template <class Candidate>
__device__ void merge(const void* input, void* values, void* indices, const void* scratch, u32 classes, u32 count,
                      u32 index_size, u32 segments, u32 capacity) {
    Selection<Candidate, BLOCK_THREADS> selection(SHARED_MEMORY, count, capacity);
    const u64 row = blockIdx.x;
    const u32 size = segments * count;
    const Candidate* const kept = static_cast<const Candidate*>(scratch) + row * size;
    for (u32 tile = 0; tile < size; tile += BLOCK_THREADS) {
        const u32 i = tile + selection.lane;
        const Candidate candidate = i < size ? kept[i] : Candidate::none();
        if (!selection.offer(candidate, false)) {
            continue;
        }
        bool is_pending = true;
        do {
            u32 at = 0;
            const bool is_wanted = is_pending && selection.is_wanted(candidate);
            is_pending = is_wanted && !selection.reserve(1, at);
            if (is_wanted && !is_pending) {
                selection.candidates[at] = candidate;
            }
        } while (selection.is_full(is_pending));
    }
    selection.finish();
    write<u32>(selection, input, classes, row, BLOCK_THREADS, values, indices, index_size);
}

#define TOPK(BITS)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(WARP_THREADS, 8)                                                     \
        topk_warp_##BITS(const void* input, void* values, void* indices, u32 rows, u32 classes, u32 count, u32 order, \
                         u32 index_size) {                                                                            \
        by_warp<BITS>(input, values, indices, rows, classes, count, order, index_size);                               \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4)                                                    \
        topk_block_##BITS(const void* input, void* values, void* indices, void* scratch, u32 classes, u32 count,      \
                          u32 order, u32 index_size, u32 segments, u32 capacity) {                                    \
        by_block<BITS>(input, values, indices, scratch, classes, count, order, index_size, segments, capacity);       \
    }

TOPK(32)

#define TOPK_MERGE(NAME, CANDIDATE)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)                                                   \
        topk_merge_##NAME(const void* input, void* values, void* indices, const void* scratch, u32 classes,       \
                          u32 count, u32 index_size, u32 segments, u32 capacity) {              \
        merge<CANDIDATE>(input, values, indices, scratch, classes, count, index_size, segments,     \
                         capacity);                                                                               \
    }

TOPK_MERGE(narrow, Narrow)

// Runs launches of the kernels on the host: cases come in on standard input, buffers go out on standard output as the
// kernels left them. tests/kernels/emulator.rs is the other side.

#include "emulate.h"

#include "../../kernels/pointwise.cu"
#include "../../kernels/reshape.cu"
#include "../../kernels/topk.cu"

#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <string>
#include <tuple>

namespace {

constexpr size_t PAGE = 4096;
constexpr size_t ALIGNMENT = 16;
constexpr unsigned char MARK = 0xee;

// Memory whose end is the end of what may be touched, and whose front is marked.
class Guarded {
   public:
    explicit Guarded(size_t size) : size_(size) {
        const size_t held = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        pages_ = (held + PAGE - 1) / PAGE * PAGE + PAGE;
        void* const mapped = mmap(nullptr, pages_ + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) {
            emulated::fail("no memory");
        }
        pages_start_ = static_cast<unsigned char*>(mapped);
        mprotect(pages_start_ + pages_, PAGE, PROT_NONE);
        start_ = pages_start_ + pages_ - held;
        std::memset(pages_start_, MARK, pages_);
    }
    Guarded(const Guarded&) = delete;
    Guarded(Guarded&& other) noexcept { *this = std::move(other); }
    Guarded& operator=(Guarded&& other) noexcept {
        std::swap(pages_start_, other.pages_start_);
        std::swap(start_, other.start_);
        std::swap(pages_, other.pages_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Guarded() {
        if (pages_start_ != nullptr) {
            munmap(pages_start_, pages_ + PAGE);
        }
    }

    unsigned char* start() const { return start_; }
    size_t size() const { return size_; }

    void check() const {
        const bool is_whole =
            std::all_of(pages_start_, start_, [](unsigned char byte) { return byte == MARK; }) &&
            std::all_of(start_ + size_, pages_start_ + pages_, [](unsigned char byte) { return byte == MARK; });
        if (!is_whole) {
            emulated::fail("a kernel wrote beside a buffer");
        }
    }

   private:
    unsigned char* pages_start_ = nullptr;
    unsigned char* start_ = nullptr;
    size_t pages_ = 0;
    size_t size_ = 0;
};

// A parameter as it came: its type and its bits.
enum Kind : uint32_t { U32 = 0, U64 = 1, POINTER = 2 };

struct Value {
    uint32_t kind;
    uint64_t bits;
};

template <class P>
P parameter(const Value& value) {
    const uint32_t kind = std::is_pointer_v<P> ? POINTER : sizeof(P) == 8 ? U64 : U32;
    if (value.kind != kind) {
        emulated::fail("a parameter is of another type");
    }
    return emulated::unpack<P>(value.bits);
}

using Kernel = std::function<void(const std::vector<Value>&)>;

template <class... P, size_t... I>
Kernel bound(void (*kernel)(P...), std::index_sequence<I...>) {
    return [kernel](const std::vector<Value>& values) {
        if (values.size() != sizeof...(P)) {
            emulated::fail("not as many parameters");
        }
        kernel(parameter<P>(values[I])...);
    };
}

template <class... P>
Kernel bind(void (*kernel)(P...)) {
    return bound(kernel, std::index_sequence_for<P...>{});
}

#define KERNEL(NAME) {#NAME, bind(NAME)}

const std::map<std::string, Kernel> KERNELS = {
    KERNEL(topk_warp_8),          KERNEL(topk_warp_16),     KERNEL(topk_warp_32),      KERNEL(topk_warp_64),
    KERNEL(topk_block_8),         KERNEL(topk_block_16),    KERNEL(topk_block_32),     KERNEL(topk_block_64),
    KERNEL(topk_merge_narrow),    KERNEL(topk_merge_wide),  KERNEL(reshape_copy),      KERNEL(reshape_box),
    KERNEL(pointwise_activation), KERNEL(pointwise_binary), KERNEL(softmax_warp),      KERNEL(softmax_block),
};

bool read(void* bytes, size_t size) { return std::fread(bytes, 1, size, stdin) == size; }

template <class Number>
Number number() {
    Number value;
    if (!read(&value, sizeof value)) {
        emulated::fail("the input ends in a case");
    }
    return value;
}

void launch(const std::vector<Guarded>& buffers) {
    std::string name(number<uint32_t>(), '\0');
    if (!read(name.data(), name.size())) {
        emulated::fail("the input ends in a name");
    }
    const uint32_t x = number<uint32_t>(), y = number<uint32_t>(), threads = number<uint32_t>();
    const Guarded shared(number<uint32_t>());
    const uint64_t seed = number<uint64_t>();
    std::vector<Value> values(number<uint32_t>());
    for (Value& value : values) {
        value.kind = number<uint32_t>();
        value.bits = number<uint64_t>();
        if (value.kind == POINTER) {
            // A buffer by its number; none beyond the last.
            value.bits = value.bits < buffers.size() ? reinterpret_cast<uint64_t>(buffers[value.bits].start()) : 0;
        }
    }
    const auto kernel = KERNELS.find(name);
    if (kernel == KERNELS.end()) {
        emulated::fail("no kernel of that name");
    }
    emulated::run({x, y, 1}, threads, shared.start(), shared.size(), seed, [&] { kernel->second(values); });
    shared.check();
}

}  // namespace

int main() {
    uint32_t buffer_count;
    while (read(&buffer_count, sizeof buffer_count)) {
        std::vector<Guarded> buffers;
        for (uint32_t i = 0; i < buffer_count; i++) {
            buffers.emplace_back(number<uint64_t>());
            if (!read(buffers.back().start(), buffers.back().size())) {
                emulated::fail("the input ends in a buffer");
            }
        }
        for (uint32_t launches = number<uint32_t>(); launches > 0; launches--) {
            launch(buffers);
        }
        for (const Guarded& buffer : buffers) {
            buffer.check();
            std::fwrite(buffer.start(), 1, buffer.size(), stdout);
        }
        std::fflush(stdout);
    }
}

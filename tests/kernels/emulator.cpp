// Runs launches of the kernels on the host: reads cases from standard input, and writes the buffers after the kernels
// to standard output. tests/kernels/emulator.rs is the other side.

#include "guarded.h"
#include "table.h"

namespace {

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
            // A buffer by its number; null beyond the last.
            value.bits = value.bits < buffers.size() ? reinterpret_cast<uint64_t>(buffers[value.bits].start()) : 0;
        }
    }
    const auto kernel = KERNELS.find(name);
    if (kernel == KERNELS.end()) {
        emulated::fail("no kernel of that name");
    }
    emulated::run({x, y, 1}, threads, shared.start(), shared.size(), seed, [&] { kernel->second.run(values); });
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

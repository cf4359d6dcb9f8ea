// The kernels by name, for programs that run them on the host: the emulator of tests/it/kernels.rs, and the software
// GPU.
#pragma once

#include "emulate.h"

#include "../../kernels/pointwise.cu"
#include "../../kernels/reshape.cu"
#include "../../kernels/topk.cu"

#include <map>
#include <string>
#include <utility>

namespace {

// A parameter as received: its type and its bits.
enum Kind : uint32_t { U32 = 0, U64 = 1, POINTER = 2 };

struct Value {
    uint32_t kind;
    uint64_t bits;
};

template <class P>
constexpr Kind kind_of() {
    return std::is_pointer_v<P> ? POINTER : sizeof(P) == 8 ? U64 : U32;
}

template <class P>
P parameter(const Value& value) {
    if (value.kind != kind_of<P>()) {
        emulated::fail("a parameter is of another type");
    }
    return emulated::unpack<P>(value.bits);
}

struct Kernel {
    std::vector<Kind> kinds;
    std::function<void(const std::vector<Value>&)> run;
};

template <class... P, size_t... I>
Kernel bound(void (*kernel)(P...), std::index_sequence<I...>) {
    const auto run = [kernel](const std::vector<Value>& values) {
        if (values.size() != sizeof...(P)) {
            emulated::fail("not as many parameters");
        }
        kernel(parameter<P>(values[I])...);
    };
    return {{kind_of<P>()...}, run};
}

template <class... P>
Kernel bind(void (*kernel)(P...)) {
    return bound(kernel, std::index_sequence_for<P...>{});
}

#define KERNEL(NAME) {#NAME, bind(NAME)}

const std::map<std::string, Kernel> KERNELS = {
    KERNEL(topk_warp_32),        KERNEL(topk_block_32),    KERNEL(topk_merge_narrow),
    KERNEL(reshape_copy),        KERNEL(reshape_box),      KERNEL(pointwise_activation),
    KERNEL(pointwise_binary),    KERNEL(softmax_warp),     KERNEL(softmax_block),
};

}  // namespace

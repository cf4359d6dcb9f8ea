// Kernels of the software GPU: their properties in the PTX, and their run, whose faults break the context and not the
// process.
#pragma once

#include "state.h"

namespace {

// The point to which a fault in a kernel jumps.
thread_local sigjmp_buf* kernel_frame = nullptr;
thread_local const char* kernel_failure = nullptr;
struct sigaction actions_before[NSIG];

void kernel_failed(const char* why) {
    if (kernel_frame != nullptr) {
        kernel_failure = why;
        siglongjmp(*kernel_frame, 1);
    }
}

void on_signal(int signal, siginfo_t* facts, void* place) {
    if (kernel_frame != nullptr) {
        kernel_failure = "an access to memory that is not the device's";
        siglongjmp(*kernel_frame, 1);
    }
    const struct sigaction& before = actions_before[signal];
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, facts, place);
        return;
    }
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
        return;
    }
    ::signal(signal, SIG_DFL);
}

struct Launch {
    const Kernel* kernel;
    std::string name;
    uint3 grid;
    unsigned threads, shared_size;
    std::vector<Value> values;
};

CUresult run(Context& context, Launch& launch) {
    for (Value& value : launch.values) {
        if (value.kind != POINTER || value.bits == 0) {
            continue;
        }
        const std::lock_guard guard(context.lock);
        const unsigned char* const at = place(context, value.bits, 0);
        if (at == nullptr) {
            write_line("illegal: " + launch.name + " is given a pointer to no memory of the device");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        value.bits = reinterpret_cast<uint64_t>(at);
    }
    const Guarded shared(launch.shared_size);
    sigjmp_buf frame;
    emulated::on_failure = kernel_failed;
    if (sigsetjmp(frame, 1) != 0) {
        kernel_frame = nullptr;
        write_line("illegal: " + launch.name + ": " + kernel_failure);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    kernel_frame = &frame;
    const uint64_t seed = ++driver.launches * 0x9e3779b97f4a7c15;
    emulated::run(launch.grid, launch.threads, shared.start(), shared.size(), seed,
                  [&launch] { launch.kernel->run(launch.values); });
    kernel_frame = nullptr;
    if (!shared.is_whole()) {
        write_line("illegal: " + launch.name + " writes beside its shared memory");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}

// The word behind the first `key` of a text, to the end of the line.
std::string line_behind(const std::string& text, const std::string& key) {
    const size_t at = text.find(key);
    if (at == std::string::npos) {
        return {};
    }
    const size_t begin = at + key.size();
    return text.substr(begin, text.find('\n', begin) - begin);
}

// The sizes of an entry's parameters, by `.param .u64 name` and its like.
bool parse_parameters(const std::string& text, std::vector<size_t>& sizes) {
    std::stringstream all(text);
    for (std::string one; std::getline(all, one, ',');) {
        std::stringstream words(one);
        std::string word, type;
        words >> word >> type;
        if (word.empty()) {
            continue;
        }
        const std::string digits = type.size() > 2 ? type.substr(2) : "";
        if (word != ".param" || digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) {
            return false;
        }
        sizes.push_back(std::stoul(digits) / 8);
    }
    return true;
}

CUresult parse(const std::string& text, Context& context, Module& module) {
    const std::string version = line_behind(text, "\n.version "), target = line_behind(text, "\n.target sm_");
    if (version.empty() || target.empty() || line_behind(text, "\n.address_size ") != "64") {
        return CUDA_ERROR_INVALID_PTX;
    }
    // A driver of CUDA 11.4 takes PTX to 7.4.
    if (std::stod(version) > 8.5) {
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (std::stoi(target) > COMPUTE_CAPABILITY[0] * 10 + COMPUTE_CAPABILITY[1]) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const std::string key = ".visible .entry ";
    for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
        const size_t open = text.find('(', at), shut = text.find(')', at), body = text.find("\n{", at);
        if (open == std::string::npos || shut == std::string::npos || body == std::string::npos) {
            return CUDA_ERROR_INVALID_PTX;
        }
        auto function = std::make_unique<Function>();
        function->context = &context;
        function->name = text.substr(at + key.size(), open - at - key.size());
        if (!parse_parameters(text.substr(open + 1, shut - open - 1), function->sizes)) {
            return CUDA_ERROR_INVALID_PTX;
        }
        const std::string threads = line_behind(text.substr(shut, body - shut), ".maxntid ");
        function->threads_max = threads.empty() ? THREADS_MAX : std::stoul(threads);
        const auto kernel = KERNELS.find(function->name);
        if (kernel == KERNELS.end()) {
            misuse("the PTX has an entry without a source: " + function->name);
            return CUDA_ERROR_INVALID_IMAGE;
        }
        function->kernel = &kernel->second;
        bool is_same = function->sizes.size() == function->kernel->kinds.size();
        for (size_t i = 0; is_same && i < function->sizes.size(); i++) {
            is_same = function->sizes[i] == (function->kernel->kinds[i] == U32 ? 4u : 8u);
        }
        if (!is_same) {
            misuse("the PTX has other parameters than the source: " + function->name);
            return CUDA_ERROR_INVALID_IMAGE;
        }
        module.functions[function->name] = std::move(function);
    }
    return CUDA_SUCCESS;
}

}  // namespace

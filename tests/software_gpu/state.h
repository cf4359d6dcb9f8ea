// The state of the software GPU's driver: contexts, and in each its memory, its streams with their threads, and its
// events.
#pragma once

#include "faults.h"

#include "../kernels/guarded.h"
#include "../kernels/table.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <thread>

using software_gpu::misuse;
using Clock = std::chrono::steady_clock;

namespace {

// Device addresses: not canonical, so that a host that dereferences one crashes.
constexpr uint64_t DEVICE_BASE = uint64_t{1} << 60;
constexpr size_t ALIGNMENT = 256;
constexpr uint64_t CONTEXT_SIZE = 1 << 20;
constexpr unsigned THREADS_MAX = 1024;
constexpr unsigned SHARED_SIZE_MAX = 48 * 1024;
constexpr int COMPUTE_CAPABILITY[2] = {9, 0};

// One piece of a stream's work. Returns success, or the failure that breaks the context.
using Work = std::function<CUresult()>;

struct Memory {
    Guarded held;
    explicit Memory(size_t size) : held(size, ALIGNMENT) {}
};

// A file that stands for memory shared by another process.
struct SharedMemory {
    std::string path;
    unsigned char* start = nullptr;
    size_t size = 0;
    unsigned opens = 1;

    explicit SharedMemory(const std::string& name) : path(name) {
        const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
        struct stat status {};
        if (file < 0) {
            return;
        }
        if (fstat(file, &status) == 0 && status.st_size > 0) {
            void* const mapped =
                mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (mapped != MAP_FAILED) {
                start = static_cast<unsigned char*>(mapped);
                size = static_cast<size_t>(status.st_size);
            }
        }
        close(file);
    }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory() {
        if (start != nullptr) {
            munmap(start, size);
        }
    }
};

struct Context;

struct Stream {
    Context* context;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Work> queue;
    bool is_busy = false;
    bool has_ended = false;
};

struct Event {
    Context* context = nullptr;
    bool is_timed = true;
    // Count of its records, and the last of them that was passed.
    uint64_t recorded = 0, passed = 0;
    Clock::time_point when{};
};

struct Function {
    Context* context = nullptr;
    std::string name;
    const Kernel* kernel = nullptr;
    std::vector<size_t> sizes;
    unsigned threads_max = THREADS_MAX;
};

struct Module {
    std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Context {
    int device = 0;
    std::atomic<int> failure{0};
    std::atomic<bool> is_hung{false};
    // Guards the members below.
    std::mutex lock;
    std::map<uint64_t, std::unique_ptr<Memory>> memory, pinned;
    std::map<uint64_t, std::unique_ptr<SharedMemory>> shared;
    std::map<CUstream, std::shared_ptr<Stream>> streams;
    std::map<CUevent, std::shared_ptr<Event>> events;
    std::map<CUmodule, std::unique_ptr<Module>> modules;
    uint64_t taken = 0;
    std::shared_ptr<Stream> legacy;
    // Kept, so that no address is reused while the context exists.
    std::vector<std::shared_ptr<Stream>> streams_ended;
    std::vector<std::shared_ptr<Event>> events_ended;
};

struct Driver {
    std::mutex lock;
    bool is_initialised = false;
    std::map<CUcontext, std::shared_ptr<Context>> contexts;
    // Kept, so that no address is ever reused.
    std::vector<std::shared_ptr<Context>> ended;
    std::atomic<int> failure{0};
    std::atomic<uint64_t> launches{0};
};

// Never destroyed: streams still run when the process ends.
Driver& driver = *new Driver;
thread_local std::vector<CUcontext> current_contexts;

int device_count() { return static_cast<int>(number_of("SOFTWARE_GPU_DEVICES", 1)); }
uint64_t device_memory() { return static_cast<uint64_t>(number_of("SOFTWARE_GPU_MEMORY", 256 << 20)); }

void set_failed(Context& context, CUresult why) {
    write_line("broken: a context of device " + std::to_string(context.device) + " by " + std::to_string(why));
    context.failure = why;
    if (setting("SOFTWARE_GPU_STICKY", "context") == "process") {
        driver.failure = why;
    }
}

CUresult failure_of(const Context& context) {
    const int of_all = driver.failure;
    return static_cast<CUresult>(of_all != 0 ? of_all : context.failure.load());
}

// The current context, if it is whole.
CUresult enter(std::shared_ptr<Context>& context) {
    const std::lock_guard guard(driver.lock);
    if (!driver.is_initialised) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (current_contexts.empty()) {
        misuse("a call without a current context");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto found = driver.contexts.find(current_contexts.back());
    if (found == driver.contexts.end()) {
        misuse("a call in a context that was destroyed");
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    context = found->second;
    return failure_of(*context);
}

#define ENTER()                                                       \
    std::shared_ptr<Context> context;                                 \
    if (const CUresult failure = enter(context); failure != 0) {      \
        return failure;                                               \
    }

// A stream's thread: it runs until the stream was ended and its queue is empty.
void serve(const std::shared_ptr<Stream>& stream, std::shared_ptr<Context> context) {
    // For the handler of a kernel's faults, whose own stack is a fiber's.
    std::vector<char> signal_memory(1 << 16);
    stack_t signal_stack{};
    signal_stack.ss_sp = signal_memory.data();
    signal_stack.ss_size = signal_memory.size();
    sigaltstack(&signal_stack, nullptr);
    const long linger = number_of("SOFTWARE_GPU_DELAY_US", 40);
    uint64_t seed = reinterpret_cast<uint64_t>(stream.get()) | 1;
    for (;;) {
        Work work;
        {
            std::unique_lock guard(stream->lock);
            stream->changed.wait(guard, [&] { return !stream->queue.empty() || stream->has_ended; });
            if (stream->queue.empty()) {
                break;
            }
            work = std::move(stream->queue.front());
            stream->queue.pop_front();
            stream->is_busy = true;
        }
        if (linger > 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(emulated::draw(seed) % linger));
        }
        // A context that broke no longer does anything.
        if (failure_of(*context) == CUDA_SUCCESS) {
            if (const CUresult outcome = work(); outcome != CUDA_SUCCESS) {
                set_failed(*context, outcome);
            }
        }
        work = nullptr;
        {
            const std::lock_guard guard(stream->lock);
            stream->is_busy = false;
        }
        stream->changed.notify_all();
    }
    signal_stack.ss_flags = SS_DISABLE;
    sigaltstack(&signal_stack, nullptr);
}

std::shared_ptr<Stream> make_stream(const std::shared_ptr<Context>& context) {
    auto stream = std::make_shared<Stream>();
    stream->context = context.get();
    std::thread(serve, stream, context).detach();
    return stream;
}

void put(Stream& stream, Work work) {
    {
        const std::lock_guard guard(stream.lock);
        stream.queue.push_back(std::move(work));
    }
    stream.changed.notify_all();
}

void wait_idle(Stream& stream) {
    std::unique_lock guard(stream.lock);
    stream.changed.wait(guard, [&] { return stream.queue.empty() && !stream.is_busy; });
}

void end(Stream& stream) {
    {
        const std::lock_guard guard(stream.lock);
        stream.has_ended = true;
    }
    stream.changed.notify_all();
}

// A stream of this context; its default one for null.
CUresult find(Context& context, CUstream handle, std::shared_ptr<Stream>& stream) {
    const std::lock_guard guard(context.lock);
    if (handle == nullptr) {
        stream = context.legacy;
        return CUDA_SUCCESS;
    }
    const auto found = context.streams.find(handle);
    if (found == context.streams.end()) {
        misuse("a stream that was destroyed, or is of another context");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    stream = found->second;
    return CUDA_SUCCESS;
}

CUresult find(Context& context, CUevent handle, std::shared_ptr<Event>& event) {
    const std::lock_guard guard(context.lock);
    const auto found = context.events.find(handle);
    if (found == context.events.end()) {
        misuse("an event that was destroyed, or is of another context");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    event = found->second;
    return CUDA_SUCCESS;
}

#define FIND(NAME, TYPE, HANDLE)                                              \
    std::shared_ptr<TYPE> NAME;                                               \
    if (const CUresult failure = find(*context, HANDLE, NAME); failure != 0) { \
        return failure;                                                       \
    }

// The host's address of `size` bytes of a context's memory, or of its pinned memory, which has the same address on both
// sides; null if they are not all allocated. The lock is held.
unsigned char* place(Context& context, uint64_t address, size_t size) {
    for (auto* const kind : {&context.memory, &context.pinned}) {
        auto found = kind->upper_bound(address);
        if (found == kind->begin()) {
            continue;
        }
        --found;
        const uint64_t offset = address - found->first;
        const Guarded& held = found->second->held;
        if (offset <= held.size() && size <= held.size() - offset) {
            return held.start() + offset;
        }
    }
    auto found = context.shared.upper_bound(address);
    if (found != context.shared.begin()) {
        --found;
        const uint64_t offset = address - found->first;
        if (offset <= found->second->size && size <= found->second->size - offset) {
            return found->second->start + offset;
        }
    }
    return nullptr;
}

// Writes a line if tracing of copies and launches is on.
void trace(const std::string& line) {
    if (std::getenv("SOFTWARE_GPU_TRACE") != nullptr) {
        write_line(line);
    }
}

bool is_pinned(Context& context, const void* address, size_t size) {
    const uint64_t at = reinterpret_cast<uint64_t>(address);
    const std::lock_guard guard(context.lock);
    return at < DEVICE_BASE && place(context, at, size) != nullptr;
}

bool is_device(Context& context, CUdeviceptr at, size_t size) {
    const std::lock_guard guard(context.lock);
    return place(context, at, size) != nullptr;
}

}  // namespace

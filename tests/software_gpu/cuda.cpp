// A CUDA driver without a GPU: libcuda.so.1 as the server loads it, with the functions that the server calls and no
// other. Written after the documentation of the driver API, not after the server's code, so that the two are held to
// one another. Device memory is host memory under addresses at which the host finds nothing; a stream is a thread with a
// queue, so that copies, kernels and calls of the host come late and side by side; a kernel is its .cu source, run
// thread by thread.
//
// Environment variables:
//   SOFTWARE_GPU_DEVICES     count of devices (1)
//   SOFTWARE_GPU_MEMORY      bytes of each (268435456)
//   SOFTWARE_GPU_INIT        result of cuInit (0)
//   SOFTWARE_GPU_VERSION     result of cuDriverGetVersion (12090)
//   SOFTWARE_GPU_DELAY_US    longest delay of a stream before a step (40)
//   SOFTWARE_GPU_STICKY      `process`: after an exception of a kernel every context fails, as the documentation of
//                            CUDA_ERROR_ILLEGAL_ADDRESS has it; else the one it happened in
//   SOFTWARE_GPU_FAULTS      failures to come, `kind@n` with commas between: the n-th of its kind from now, or every
//                            one (`kind@*`). Kinds: illegal, hang, refuse (launches), oom (cuMemAlloc), oom-host
//                            (cuMemHostAlloc), silent (calls of the host), matmul, matmul-fails, no-algorithm (cuBLASLt)
//   SOFTWARE_GPU_FAULTS_FILE a file with more of them, read and removed whenever it is there
//   SOFTWARE_GPU_LOG         a file that takes a line for each misuse, leak and failure
//   SOFTWARE_GPU_TRACE       set, a line for each asynchronous copy (`in`, `out`) and each copy between contexts
//                            (`across`), with its bytes, for each launch of a kernel and each end of a context
#include "kernel.h"

namespace {

// Reports memory and handles that were never given back. A context that broke or hangs is left as it is.
void report_leaks(Context& context, const char* when) {
    if (failure_of(context) != CUDA_SUCCESS || context.is_hung) {
        return;
    }
    const std::lock_guard guard(context.lock);
    const auto report = [&](size_t count, const char* what) {
        if (count > 0) {
            write_line("leak: " + std::to_string(count) + " " + what + " " + when);
        }
    };
    report(context.memory.size(), "pieces of device memory");
    report(context.shared.size(), "pieces of memory of other processes");
    report(context.pinned.size(), "pieces of pinned memory");
    report(context.streams.size(), "streams");
    report(context.events.size(), "events");
    for (const auto& [_, piece] : context.memory) {
        if (!piece->held.is_whole()) {
            misuse("a kernel or a copy wrote beside its memory");
        }
    }
}

void at_exit() {
    const std::lock_guard guard(driver.lock);
    for (const auto& [_, context] : driver.contexts) {
        report_leaks(*context, "at the end of the process");
    }
    write_line("end: " + std::to_string(driver.launches) + " launches, " + std::to_string(driver.contexts.size()) +
               " contexts left");
}

}  // namespace

namespace software_gpu {

void misuse(const std::string& what) { write_line("misuse: " + what); }

bool is_due(const char* kind) { return faults.is_due(kind); }

CUcontext current() { return current_contexts.empty() ? nullptr : current_contexts.back(); }

uint64_t launch_count() { return driver.launches; }

CUcontext context_of(CUstream stream) {
    const std::lock_guard guard(driver.lock);
    for (const auto& [handle, context] : driver.contexts) {
        const std::lock_guard inner(context->lock);
        if (context->streams.count(stream) != 0) {
            return handle;
        }
    }
    return nullptr;
}

CUresult enqueue(CUstream handle, Work work) {
    ENTER();
    FIND(stream, Stream, handle);
    put(*stream, [work = std::move(work)] {
        driver.launches++;
        return work();
    });
    return CUDA_SUCCESS;
}

void* resolve(CUcontext handle, CUdeviceptr pointer, size_t size) {
    std::shared_ptr<Context> context;
    {
        const std::lock_guard guard(driver.lock);
        const auto found = driver.contexts.find(handle);
        if (found == driver.contexts.end()) {
            return nullptr;
        }
        context = found->second;
    }
    const std::lock_guard guard(context->lock);
    return place(*context, pointer, size);
}

void memory_of(int device, uint64_t& total, uint64_t& used) {
    const std::lock_guard guard(driver.lock);
    total = device_memory();
    used = 0;
    for (const auto& [_, context] : driver.contexts) {
        const std::lock_guard inner(context->lock);
        used += context->device == device ? CONTEXT_SIZE + context->taken : 0;
    }
}

namespace {

CUuuid uuid(int device) {
    CUuuid uuid;
    for (int i = 0; i < 16; i++) {
        uuid.bytes[i] = static_cast<char>(0xa0 + 7 * i + device);
    }
    return uuid;
}

}  // namespace

int device_of(const char* text) {
    for (int device = 0; device < device_count(); device++) {
        std::string want = "GPU";
        for (int i = 0; i < 16; i++) {
            char digits[4];
            const bool begins = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
            std::snprintf(digits, sizeof digits, begins ? "-%02x" : "%02x", uuid(device).bytes[i] & 0xff);
            want += digits;
        }
        if (want == text) {
            return device;
        }
    }
    return -1;
}

}  // namespace software_gpu

extern "C" {

EXPORTED CUresult CUDAAPI cuInit(unsigned int flags) {
    const int outcome = static_cast<int>(number_of("SOFTWARE_GPU_INIT", 0));
    if (outcome != 0) {
        return static_cast<CUresult>(outcome);
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device_count() == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    const std::lock_guard guard(driver.lock);
    if (!driver.is_initialised) {
        driver.is_initialised = true;
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (const int signal : {SIGSEGV, SIGBUS}) {
            sigaction(signal, &action, &actions_before[signal]);
        }
        std::atexit(at_exit);
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDriverGetVersion(int* version) {
    if (version == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = static_cast<int>(number_of("SOFTWARE_GPU_VERSION", 12090));
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
#define X(NAME, VALUE)   \
    case NAME:           \
        *name = #NAME;   \
        return CUDA_SUCCESS;
        SOFTWARE_GPU_RESULTS(X)
#undef X
        default: *name = nullptr; return CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORTED CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

EXPORTED CUresult CUDAAPI cuDeviceGetCount(int* count) {
    *count = device_count();
    return driver.is_initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORTED CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
    if (!driver.is_initialised) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (ordinal < 0 || ordinal >= device_count()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetName(char* name, int size, CUdevice device) {
    if (device < 0 || device >= device_count()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::snprintf(name, static_cast<size_t>(size), "Software GPU %d", device);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    if (device < 0 || device >= device_count()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *uuid = software_gpu::uuid(device);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

EXPORTED CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    if (device < 0 || device >= device_count()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = device_memory();
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    if (device < 0 || device >= device_count()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = THREADS_MAX; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = COMPUTE_CAPABILITY[0]; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = COMPUTE_CAPABILITY[1]; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
    if (!driver.is_initialised) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (const int failure = driver.failure; failure != 0) {
        return static_cast<CUresult>(failure);
    }
    if (device < 0 || device >= device_count()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (context == nullptr || (flags & ~0xffu) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<Context>();
    made->device = device;
    made->legacy = make_stream(made);
    *context = reinterpret_cast<CUcontext>(made.get());
    const std::lock_guard guard(driver.lock);
    driver.contexts[*context] = made;
    current_contexts.push_back(*context);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
    std::shared_ptr<Context> context;
    {
        const std::lock_guard guard(driver.lock);
        const auto found = driver.contexts.find(handle);
        if (found == driver.contexts.end()) {
            misuse("a context is destroyed twice");
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        context = found->second;
    }
    std::vector<std::shared_ptr<Stream>> streams{context->legacy};
    {
        const std::lock_guard guard(context->lock);
        for (const auto& [_, stream] : context->streams) {
            streams.push_back(stream);
        }
    }
    for (const auto& stream : streams) {
        wait_idle(*stream);
    }
    report_leaks(*context, "when their context was destroyed");
    for (const auto& stream : streams) {
        end(*stream);
    }
    if (!current_contexts.empty() && current_contexts.back() == handle) {
        current_contexts.pop_back();
    }
    const CUresult failure = failure_of(*context);
    trace("end of a context");
    const std::lock_guard guard(driver.lock);
    driver.contexts.erase(handle);
    {
        const std::lock_guard inner(context->lock);
        context->memory.clear();
        context->shared.clear();
        context->pinned.clear();
        context->events.clear();
        context->streams.clear();
    }
    driver.ended.push_back(context);
    return failure;
}

EXPORTED CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
    const std::lock_guard guard(driver.lock);
    if (!driver.is_initialised) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (handle != nullptr && driver.contexts.count(handle) == 0) {
        misuse("a context that was destroyed is made current");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!current_contexts.empty()) {
        current_contexts.pop_back();
    }
    if (handle != nullptr) {
        current_contexts.push_back(handle);
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTER();
    uint64_t all = 0, used = 0;
    software_gpu::memory_of(context->device, all, used);
    *free = all - used;
    *total = all;
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* pointer, size_t size) {
    ENTER();
    if (pointer == nullptr || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t all = 0, used = 0;
    software_gpu::memory_of(context->device, all, used);
    if (size > all - used || software_gpu::is_due("oom")) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto memory = std::make_unique<Memory>(size);
    *pointer = reinterpret_cast<uint64_t>(memory->held.start()) + DEVICE_BASE;
    const std::lock_guard guard(context->lock);
    context->taken += size;
    context->memory[*pointer] = std::move(memory);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer) {
    ENTER();
    std::vector<std::shared_ptr<Stream>> streams{context->legacy};
    {
        const std::lock_guard guard(context->lock);
        for (const auto& [_, stream] : context->streams) {
            streams.push_back(stream);
        }
    }
    // Waits for the device.
    for (const auto& stream : streams) {
        wait_idle(*stream);
    }
    const std::lock_guard guard(context->lock);
    const auto found = context->memory.find(pointer);
    if (found == context->memory.end()) {
        misuse("device memory is given back that was not taken, or twice");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!found->second->held.is_whole()) {
        misuse("a kernel or a copy wrote beside its memory");
    }
    context->taken -= found->second->held.size();
    context->memory.erase(found);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemHostAlloc(void** pointer, size_t size, unsigned int flags) {
    ENTER();
    // PORTABLE, DEVICEMAP, WRITECOMBINED.
    if (pointer == nullptr || size == 0 || (flags & ~7u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (software_gpu::is_due("oom-host")) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto memory = std::make_unique<Memory>(size);
    *pointer = memory->held.start();
    const std::lock_guard guard(context->lock);
    context->pinned[reinterpret_cast<uint64_t>(*pointer)] = std::move(memory);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    ENTER();
    const std::lock_guard guard(context->lock);
    const auto found = context->pinned.find(reinterpret_cast<uint64_t>(pointer));
    if (found == context->pinned.end()) {
        misuse("pinned memory is given back that was not taken, or twice");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!found->second->held.is_whole()) {
        misuse("somebody wrote beside pinned memory");
    }
    context->pinned.erase(found);
    return CUDA_SUCCESS;
}

// Pageable memory is read before the call returns; the caller is not told when the bytes arrive.
EXPORTED CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t size) {
    ENTER();
    if (!is_device(*context, to, size)) {
        misuse("a copy to no memory of the device");
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto* const bytes = static_cast<const unsigned char*>(from);
    auto staged = std::make_shared<std::vector<unsigned char>>(bytes, bytes + size);
    put(*context->legacy, [context = context.get(), to, staged] {
        const std::lock_guard guard(context->lock);
        unsigned char* const at = place(*context, to, staged->size());
        if (at == nullptr) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        std::memcpy(at, staged->data(), staged->size());
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

// Returns when the bytes are there.
EXPORTED CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t size) {
    ENTER();
    if (!is_device(*context, from, size)) {
        misuse("a copy from no memory of the device");
        return CUDA_ERROR_INVALID_VALUE;
    }
    put(*context->legacy, [context = context.get(), to, from, size] {
        const void* const at = software_gpu::resolve(reinterpret_cast<CUcontext>(context), from, size);
        if (at == nullptr) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        std::memcpy(to, at, size);
        return CUDA_SUCCESS;
    });
    wait_idle(*context->legacy);
    return failure_of(*context);
}

EXPORTED CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
    ENTER();
    const std::lock_guard guard(context->lock);
    if (const auto shared = context->shared.find(pointer); shared != context->shared.end()) {
        if (base != nullptr) {
            *base = pointer;
        }
        if (size != nullptr) {
            *size = shared->second->size;
        }
        return CUDA_SUCCESS;
    }
    auto found = context->memory.upper_bound(pointer);
    if (found == context->memory.begin() || pointer - (--found)->first >= found->second->held.size()) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) {
        *base = found->first;
    }
    if (size != nullptr) {
        *size = found->second->held.size();
    }
    return CUDA_SUCCESS;
}

// Memory shared by another process is a file; the handle is its path with zeros behind it. The same context may open it
// again, at the same address; another context of the device may not open it.
EXPORTED CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
    ENTER();
    // LAZY_ENABLE_PEER_ACCESS.
    if (pointer == nullptr || flags != 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::string path(handle.reserved, strnlen(handle.reserved, sizeof handle.reserved));
    auto memory = std::make_unique<SharedMemory>(path);
    if (memory->start == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard drivers(driver.lock);
    for (const auto& [_, other] : driver.contexts) {
        const std::lock_guard guard(other->lock);
        for (const auto& [_, open] : other->shared) {
            if (open->path != path || other->device != context->device) {
                continue;
            }
            if (other != context) {
                misuse("memory of another process is opened in two contexts of a device");
                return CUDA_ERROR_ALREADY_MAPPED;
            }
            open->opens++;
            *pointer = reinterpret_cast<uint64_t>(open->start) + DEVICE_BASE;
            return CUDA_SUCCESS;
        }
    }
    *pointer = reinterpret_cast<uint64_t>(memory->start) + DEVICE_BASE;
    const std::lock_guard guard(context->lock);
    context->shared[*pointer] = std::move(memory);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr pointer) {
    ENTER();
    wait_idle(*context->legacy);
    const std::lock_guard guard(context->lock);
    const auto found = context->shared.find(pointer);
    if (found == context->shared.end()) {
        misuse("memory of another process is closed that was not opened");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (--found->second->opens == 0) {
        context->shared.erase(found);
    }
    return CUDA_SUCCESS;
}

// Work of the current context; it does not wait for streams of the others.
EXPORTED CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                            CUcontext from_context, size_t size, CUstream handle) {
    ENTER();
    FIND(stream, Stream, handle);
    const auto check = [&](CUcontext owner, CUdeviceptr at) { return software_gpu::resolve(owner, at, size) != nullptr; };
    if (!check(to_context, to) || !check(from_context, from)) {
        misuse("a copy between contexts that do not have this memory");
        return CUDA_ERROR_INVALID_VALUE;
    }
    put(*stream, [=] {
        void* const target = software_gpu::resolve(to_context, to, size);
        const void* const source = software_gpu::resolve(from_context, from, size);
        if (target == nullptr || source == nullptr) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        std::memcpy(target, source, size);
        trace("across: " + std::to_string(size));
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUstream handle) {
    ENTER();
    FIND(stream, Stream, handle);
    if (!is_device(*context, to, size)) {
        misuse("a copy to no memory of the device");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_pinned(*context, from, size)) {
        misuse("an asynchronous copy from memory that is not pinned");
    }
    put(*stream, [context = context.get(), to, from, size] {
        if (!is_pinned(*context, from, size)) {
            misuse("pinned memory was given back before it was copied");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        auto* const at = static_cast<unsigned char*>(software_gpu::resolve(reinterpret_cast<CUcontext>(context), to, size));
        if (at == nullptr) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        std::memcpy(at, from, size);
        trace("in: " + std::to_string(size));
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t size, CUstream handle) {
    ENTER();
    FIND(stream, Stream, handle);
    if (!is_device(*context, from, size)) {
        misuse("a copy from no memory of the device");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_pinned(*context, to, size)) {
        misuse("an asynchronous copy to memory that is not pinned");
    }
    put(*stream, [context = context.get(), to, from, size] {
        if (!is_pinned(*context, to, size)) {
            misuse("pinned memory was given back before it was copied to");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        const void* const at = software_gpu::resolve(reinterpret_cast<CUcontext>(context), from, size);
        if (at == nullptr) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        std::memcpy(to, at, size);
        trace("out: " + std::to_string(size));
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream handle) {
    ENTER();
    FIND(stream, Stream, handle);
    if (!is_device(*context, from, size) || !is_device(*context, to, size)) {
        misuse("a copy between no memory of the device");
        return CUDA_ERROR_INVALID_VALUE;
    }
    put(*stream, [context = context.get(), to, from, size] {
        const auto handle = reinterpret_cast<CUcontext>(context);
        const void* const source = software_gpu::resolve(handle, from, size);
        void* const target = software_gpu::resolve(handle, to, size);
        if (source == nullptr || target == nullptr) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        std::memmove(target, source, size);
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamCreate(CUstream* handle, unsigned int flags) {
    ENTER();
    if (handle == nullptr || (flags & ~1u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & CU_STREAM_NON_BLOCKING) == 0) {
        misuse("a stream that waits for the default one, which is not emulated");
    }
    auto stream = make_stream(context);
    *handle = reinterpret_cast<CUstream>(stream.get());
    const std::lock_guard guard(context->lock);
    context->streams[*handle] = stream;
    return CUDA_SUCCESS;
}

// Its enqueued work goes on.
EXPORTED CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
    ENTER();
    FIND(stream, Stream, handle);
    if (handle == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    {
        const std::lock_guard guard(context->lock);
        context->streams.erase(handle);
        context->streams_ended.push_back(stream);
    }
    end(*stream);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    ENTER();
    FIND(stream, Stream, handle);
    wait_idle(*stream);
    return failure_of(*context);
}

EXPORTED CUresult CUDAAPI cuEventCreate(CUevent* handle, unsigned int flags) {
    ENTER();
    if (handle == nullptr || (flags & ~7u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto event = std::make_shared<Event>();
    event->context = context.get();
    event->is_timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    *handle = reinterpret_cast<CUevent>(event.get());
    const std::lock_guard guard(context->lock);
    context->events[*handle] = event;
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuEventDestroy_v2(CUevent handle) {
    ENTER();
    FIND(event, Event, handle);
    const std::lock_guard guard(context->lock);
    context->events.erase(handle);
    context->events_ended.push_back(event);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream_handle) {
    ENTER();
    FIND(stream, Stream, stream_handle);
    FIND(event, Event, handle);
    uint64_t turn;
    {
        const std::lock_guard guard(context->lock);
        turn = ++event->recorded;
    }
    put(*stream, [context = context.get(), event, turn] {
        const std::lock_guard guard(context->lock);
        event->passed = std::max(event->passed, turn);
        event->when = Clock::now();
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuEventQuery(CUevent handle) {
    ENTER();
    FIND(event, Event, handle);
    const std::lock_guard guard(context->lock);
    return event->passed == event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORTED CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent begin_handle, CUevent end_handle) {
    ENTER();
    FIND(begin, Event, begin_handle);
    FIND(end, Event, end_handle);
    const std::lock_guard guard(context->lock);
    for (const Event* const event : {begin.get(), end.get()}) {
        if (!event->is_timed || event->recorded == 0) {
            misuse("the time of an event that keeps none, or was not recorded");
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (event->passed != event->recorded) {
            return CUDA_ERROR_NOT_READY;
        }
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuModuleLoadData(CUmodule* handle, const void* image) {
    ENTER();
    if (handle == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto module = std::make_unique<Module>();
    if (const CUresult failure = parse(static_cast<const char*>(image), *context, *module); failure != 0) {
        return failure;
    }
    *handle = reinterpret_cast<CUmodule>(module.get());
    const std::lock_guard guard(context->lock);
    context->modules[*handle] = std::move(module);
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuModuleGetFunction(CUfunction* handle, CUmodule module, const char* name) {
    ENTER();
    const std::lock_guard guard(context->lock);
    const auto found = context->modules.find(module);
    if (found == context->modules.end()) {
        misuse("a module of another context");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const auto function = found->second->functions.find(name);
    if (function == found->second->functions.end()) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *handle = reinterpret_cast<CUfunction>(function->second.get());
    return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuLaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
                                         unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                         unsigned int block_z, unsigned int shared_size, CUstream stream_handle,
                                         void** parameters, void** extra) {
    ENTER();
    FIND(stream, Stream, stream_handle);
    const auto* const function = reinterpret_cast<const Function*>(handle);
    if (function == nullptr || function->context != context.get()) {
        misuse("a kernel of another context");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const bool is_grid = grid_x >= 1 && grid_x <= 0x7fffffffu && grid_y >= 1 && grid_y <= 65535 && grid_z == 1;
    const bool is_block = block_x >= 1 && block_x <= function->threads_max && block_y == 1 && block_z == 1;
    if (!is_grid || !is_block || shared_size > SHARED_SIZE_MAX || parameters == nullptr || extra != nullptr) {
        misuse("a launch of " + function->name + " in a shape that it may not have");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (software_gpu::is_due("refuse")) {
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    Launch launch{function->kernel, function->name, {grid_x, grid_y, 1}, block_x, shared_size, {}};
    for (size_t i = 0; i < function->sizes.size(); i++) {
        Value value{function->kernel->kinds[i], 0};
        std::memcpy(&value.bits, parameters[i], function->sizes[i]);
        launch.values.push_back(value);
    }
    const bool breaks = software_gpu::is_due("illegal"), hangs = software_gpu::is_due("hang");
    put(*stream, [context = context.get(), launch = std::move(launch), breaks, hangs]() mutable {
        if (breaks) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        if (hangs) {
            context->is_hung = true;
            for (;;) {
                pause();
            }
        }
        trace("launch: " + launch.name);
        return run(*context, launch);
    });
    return CUDA_SUCCESS;
}

// Not called if the context breaks before.
EXPORTED CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
    ENTER();
    FIND(stream, Stream, handle);
    if (function == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool is_silent = software_gpu::is_due("silent");
    put(*stream, [function, argument, is_silent] {
        if (!is_silent) {
            function(argument);
        }
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

}  // extern "C"

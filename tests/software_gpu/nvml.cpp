// NVML for the software GPU: libnvidia-ml.so.1 as the server loads it, with the functions that it calls, after NVML's
// documentation. All figures differ, so that a mix-up shows.
#include "gpu.h"

namespace {

// nvmlReturn_t.
enum Return : int { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct Utilization {
    unsigned gpu, memory;
};

struct Memory {
    unsigned long long total, free, used;
};

struct Device {
    int number;
};

bool is_initialised = false;
Device devices[16];

Return check(const Device* device, const void* place) {
    if (!is_initialised) {
        software_gpu::misuse("NVML before nvmlInit_v2");
        return UNINITIALIZED;
    }
    return device >= devices && device < devices + 16 && place != nullptr ? SUCCESS : INVALID_ARGUMENT;
}

}  // namespace

extern "C" {

EXPORTED Return nvmlInit_v2() {
    for (int number = 0; number < 16; number++) {
        devices[number].number = number;
    }
    is_initialised = true;
    return SUCCESS;
}

EXPORTED Return nvmlDeviceGetHandleByUUID(const char* uuid, Device** device) {
    if (!is_initialised || uuid == nullptr || device == nullptr) {
        return is_initialised ? INVALID_ARGUMENT : UNINITIALIZED;
    }
    const int number = software_gpu::device_of(uuid);
    if (number < 0) {
        return NOT_FOUND;
    }
    *device = devices + number;
    return SUCCESS;
}

EXPORTED Return nvmlDeviceGetUtilizationRates(Device* device, Utilization* utilization) {
    const Return outcome = check(device, utilization);
    if (outcome == SUCCESS) {
        *utilization = {37, 11};
    }
    return outcome;
}

EXPORTED Return nvmlDeviceGetMemoryInfo(Device* device, Memory* memory) {
    const Return outcome = check(device, memory);
    if (outcome == SUCCESS) {
        uint64_t total = 0, used = 0;
        software_gpu::memory_of(device->number, total, used);
        *memory = {total, total - used, used};
    }
    return outcome;
}

EXPORTED Return nvmlDeviceGetPowerUsage(Device* device, unsigned* milliwatts) {
    const Return outcome = check(device, milliwatts);
    if (outcome == SUCCESS) {
        *milliwatts = 123456;
    }
    return outcome;
}

EXPORTED Return nvmlDeviceGetPowerManagementLimit(Device* device, unsigned* milliwatts) {
    const Return outcome = check(device, milliwatts);
    if (outcome == SUCCESS) {
        *milliwatts = 700000;
    }
    return outcome;
}

EXPORTED Return nvmlDeviceGetTotalEnergyConsumption(Device* device, unsigned long long* millijoules) {
    const Return outcome = check(device, millijoules);
    if (outcome == SUCCESS) {
        *millijoules = 5000 + software_gpu::launch_count();
    }
    return outcome;
}

}  // extern "C"

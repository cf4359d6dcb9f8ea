/* A stand-in for Triton's TensorRT backend, which behaves as that does at the interface: instances on GPUs only, the
 * configuration completed from `model.plan`, optimization profiles, pinned and device memory by the memory manager, and
 * outputs that it would rather have on the device. The plan is a line, `plan FACTOR`: OUT = IN * FACTOR. Nothing here is
 * NVIDIA's, and no GPU computes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

typedef struct {
    float factor;
    MemoryManager *memory;
} Plan;

static Error *failure(uint32_t code, const char *format, const char *name) {
    char text[256];
    snprintf(text, sizeof text, format, name);
    return TRITONSERVER_ErrorNew(code, text);
}

EXPORTED Error *TRITONBACKEND_GetBackendAttribute(Backend *backend, Attribute *attributes) {
    (void)backend;
    /* 2: KIND_GPU, one instance on each. */
    return TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, 2, 0, NULL, 0);
}

static Error *complete(Model *model) {
    const char *config =
        "{\"max_batch_size\":8,\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}],"
        "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}]}";
    Message *message;
    TRY(TRITONSERVER_MessageNewFromSerializedJson(&message, config, strlen(config)));
    Error *failed = TRITONBACKEND_ModelSetConfig(model, 1, message);
    TRITONSERVER_MessageDelete(message);
    return failed;
}

EXPORTED Error *TRITONBACKEND_ModelInitialize(Model *model) {
    const char *name, *repository;
    uint32_t kind;
    uint64_t version;
    bool completes;
    char path[4096];
    Backend *backend;
    TRY(TRITONBACKEND_ModelName(model, &name));
    TRY(TRITONBACKEND_ModelVersion(model, &version));
    TRY(TRITONBACKEND_ModelRepository(model, &kind, &repository));
    snprintf(path, sizeof path, "%s/%llu/model.plan", repository, (unsigned long long)version);
    Plan *plan = calloc(1, sizeof *plan);
    TRY(TRITONBACKEND_ModelSetState(model, plan));
    FILE *file = fopen(path, "r");
    int count = file ? fscanf(file, "plan %f", &plan->factor) : -1;
    if (file) {
        fclose(file);
    }
    if (count < 0) {
        return failure(INVALID_ARG, "unable to find PLAN model file for model '%s'", name);
    }
    if (count != 1) {
        return failure(INTERNAL, "unable to load plan file to auto complete config of '%s'", name);
    }
    TRY(TRITONBACKEND_ModelBackend(model, &backend));
    TRY(TRITONBACKEND_BackendMemoryManager(backend, &plan->memory));
    TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
    return completes ? complete(model) : NULL;
}

EXPORTED Error *TRITONBACKEND_ModelFinalize(Model *model) {
    void *plan;
    TRY(TRITONBACKEND_ModelState(model, &plan));
    free(plan);
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance) {
    Model *model;
    const char *name, *profile;
    uint32_t kind, count;
    int32_t device;
    char line[256];
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(TRITONBACKEND_ModelName(model, &name));
    TRY(TRITONBACKEND_ModelInstanceKind(instance, &kind));
    if (kind != 2) {
        return failure(INVALID_ARG, "unable to load model '%s', TensorRT backend supports only GPU device", name);
    }
    TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
    TRY(TRITONBACKEND_ModelInstanceProfileCount(instance, &count));
    for (uint32_t index = 0; index < count; index++) {
        TRY(TRITONBACKEND_ModelInstanceProfileName(instance, index, &profile));
        snprintf(line, sizeof line, "%s on GPU %d with profile %s", name, device, profile);
        TRY(TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, line));
    }
    return NULL;
}

/* Memory of the best kind that the host has; pinned first, as the backend utilities. */
static void *stage(MemoryManager *memory, uint64_t size, uint32_t *kind) {
    void *buffer = NULL;
    for (*kind = MEMORY_CPU_PINNED;; *kind = MEMORY_CPU) {
        Error *failed = TRITONBACKEND_MemoryManagerAllocate(memory, &buffer, *kind, 0, size);
        if (!failed) {
            return buffer;
        }
        TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(failed));
        TRITONSERVER_ErrorDelete(failed);
        if (*kind == MEMORY_CPU) {
            return NULL;
        }
    }
}

/* With the parameter `device` of the request its memory on the device is the host's, and its failure the client's. */
static Error *wants_device(Request *request, bool *wants) {
    uint32_t count, type;
    const char *key;
    const void *value;
    TRY(TRITONBACKEND_RequestParameterCount(request, &count));
    *wants = false;
    for (uint32_t index = 0; index < count; index++) {
        TRY(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
        *wants |= strcmp(key, "device") == 0;
    }
    return NULL;
}

static Error *run(Plan *plan, Request *request, Response *response) {
    Input *input;
    Output *output;
    const int64_t *shape;
    const void *from;
    uint64_t size, part;
    uint32_t type, dims, buffers, kind;
    int64_t id = 0;
    void *to;
    bool wants;
    TRY(wants_device(request, &wants));
    TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, &type, &shape, &dims, &size, &buffers));
    if (wants) {
        void *device;
        TRY(TRITONBACKEND_MemoryManagerAllocate(plan->memory, &device, MEMORY_GPU, 0, size));
    }
    float *staged = stage(plan->memory, size, &kind);
    if (!staged) {
        return TRITONSERVER_ErrorNew(UNAVAILABLE, "no memory");
    }
    TRY(TRITONBACKEND_InputBuffer(input, 0, &from, &part, &type, &id));
    memcpy(staged, from, part);
    for (uint64_t index = 0; index < size / sizeof *staged; index++) {
        staged[index] *= plan->factor;
    }
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_FP32, shape, dims));
    type = MEMORY_GPU;
    TRY(TRITONBACKEND_OutputBuffer(output, &to, size, &type, &id));
    if (type != MEMORY_CPU) {
        return TRITONSERVER_ErrorNew(INTERNAL, "the output is not in memory of the CPU");
    }
    memcpy(to, staged, size);
    return TRITONBACKEND_MemoryManagerFree(plan->memory, staged, kind, 0);
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    Model *model;
    void *plan;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(TRITONBACKEND_ModelState(model, &plan));
    for (uint32_t index = 0; index < count; index++) {
        Response *response;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
        Error *failed = run(plan, requests[index], response);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, FINAL, failed));
        TRITONSERVER_ErrorDelete(failed);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    return NULL;
}

/* Answers each request with its inputs: the output of input i is the model's output i (INPUT0, OUTPUT0). As Triton's own
 * identity backend it reports statistics, and all requests of a batch are answered before any is released. A run waits
 * while a file `gate` in the model's folder holds a smaller number than the run's: the first is 1. WITHOUT_GATE leaves that
 * out, for measurements. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

EXPORTED Error *TRITONBACKEND_Initialize(Backend *backend) {
    uint32_t major, minor;
    TRY(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != 1 || minor < 4) {
        return TRITONSERVER_ErrorNew(UNSUPPORTED, "triton backend API version does not support this backend");
    }
    Message *config;
    const char *json;
    size_t size;
    TRY(TRITONBACKEND_BackendConfig(backend, &config));
    TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
    char line[1024];
    snprintf(line, sizeof line, "backend configuration %.*s", (int)size, json);
    return TRITONSERVER_LogMessage(LOG_INFO, "tests/backends/identity.c", __LINE__, line);
}

EXPORTED Error *TRITONBACKEND_Finalize(Backend *backend) {
    const char *name;
    TRY(TRITONBACKEND_BackendName(backend, &name));
    return TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, "backend finalized");
}

static Error *copy(Request *request, Response *response) {
    uint32_t count;
    TRY(TRITONBACKEND_RequestInputCount(request, &count));
    for (uint32_t index = 0; index < count; index++) {
        Input *input;
        const char *name;
        uint32_t type, dims, buffers;
        const int64_t *shape;
        uint64_t size;
        TRY(TRITONBACKEND_RequestInputByIndex(request, index, &input));
        TRY(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &size, &buffers));
        char output_name[64];
        snprintf(output_name, sizeof output_name, "OUTPUT%s", name + strlen("INPUT"));
        Output *output;
        TRY(TRITONBACKEND_ResponseOutput(response, &output, output_name, type, shape, dims));
        uint32_t memory_type = MEMORY_CPU;
        int64_t memory_id = 0;
        void *to;
        TRY(TRITONBACKEND_OutputBuffer(output, &to, size, &memory_type, &memory_id));
        for (uint32_t part = 0; part < buffers; part++) {
            const void *from;
            uint64_t part_size;
            TRY(TRITONBACKEND_InputBuffer(input, part, &from, &part_size, &memory_type, &memory_id));
            memcpy(to, from, part_size);
            to = (char *)to + part_size;
        }
    }
    return NULL;
}

#ifndef WITHOUT_GATE
/* True if the gate of the model lets this run through. Another file may take its place at any time. */
static bool may_pass(const char *gate, unsigned number) {
    unsigned passed;
    FILE *file = fopen(gate, "r");
    if (!file) {
        return true;
    }
    bool has_number = fscanf(file, "%u", &passed) == 1;
    fclose(file);
    return has_number && number <= passed;
}

static Error *wait_at_gate(Instance *instance) {
    static atomic_uint runs;
    unsigned number = atomic_fetch_add(&runs, 1) + 1;
    Model *model;
    uint32_t kind;
    const char *folder;
    char gate[1024];
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(TRITONBACKEND_ModelRepository(model, &kind, &folder));
    snprintf(gate, sizeof gate, "%s/gate", folder);
    while (!may_pass(gate, number)) {
        usleep(1000);
    }
    return NULL;
}
#endif

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
#ifndef WITHOUT_GATE
    TRY(wait_at_gate(instance));
#endif
    uint64_t start = now();
    for (uint32_t index = 0; index < count; index++) {
        Response *response;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
        Error *failed = copy(requests[index], response);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, FINAL, failed));
        TRITONSERVER_ErrorDelete(failed);
    }
    uint64_t end = now();
    for (uint32_t index = 0; index < count; index++) {
        TRITONSERVER_ErrorDelete(
            TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], true, start, start, end, end));
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start, end, end));
    return NULL;
}

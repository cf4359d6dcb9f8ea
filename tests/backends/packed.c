/* Doubles the numbers of x that are not 0: its output has as many. 13 fails the request, behind what is written by then; a
 * first 99 has the output as large as the input, and leaves its buffer as it is. */
#include "host.h"

static Error *pack(Request *request, Response *response) {
    Input *input;
    const char *name;
    uint32_t type, dims, buffers;
    const int64_t *shape;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
    TRY(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &size, &buffers));
    uint32_t memory_type = MEMORY_CPU;
    int64_t memory_id = 0;
    const void *from;
    uint64_t part_size;
    TRY(TRITONBACKEND_InputBuffer(input, 0, &from, &part_size, &memory_type, &memory_id));
    if (buffers != 1) {
        return TRITONSERVER_ErrorNew(UNSUPPORTED, "its input comes in parts");
    }
    const float *x = from;
    int64_t count = shape[0], kept = 0;
    int leaves_out = count > 0 && x[0] == 99;
    for (int64_t index = 0; index < count; index++) {
        kept += leaves_out || x[index] != 0;
    }
    Output *output;
    void *to;
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "y", type, &kept, 1));
    TRY(TRITONBACKEND_OutputBuffer(output, &to, (uint64_t)kept * sizeof(float), &memory_type, &memory_id));
    float *y = to;
    for (int64_t index = 0; index < count && !leaves_out; index++) {
        if (x[index] == 13) {
            return TRITONSERVER_ErrorNew(UNAVAILABLE, "13 is no number that it likes");
        }
        if (x[index] != 0) {
            *y++ = 2 * x[index];
        }
    }
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    for (uint32_t index = 0; index < count; index++) {
        Response *response;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
        Error *failed = pack(requests[index], response);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, FINAL, failed));
        TRITONSERVER_ErrorDelete(failed);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    return NULL;
}

/* An implicit state: OUTPUT is the sum of the INPUTs of the sequence. A negative input is answered without an update of
 * the state. */
#include <string.h>

#include "host.h"

static Error *read_int(Request *request, const char *name, int32_t *value) {
    Input *input;
    const void *buffer;
    uint64_t size;
    uint32_t type;
    int64_t id;
    TRY(TRITONBACKEND_RequestInput(request, name, &input));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
    memcpy(value, buffer, sizeof *value);
    return NULL;
}

static Error *run(Request *request, Response *response) {
    int32_t input, state, start;
    TRY(read_int(request, "INPUT", &input));
    TRY(read_int(request, "INPUT_STATE", &state));
    TRY(read_int(request, "START", &start));
    int32_t sum = (start ? 0 : state) + input;
    int64_t shape[] = {1};
    uint32_t type = MEMORY_CPU;
    int64_t id = 0;
    void *buffer;
    if (input >= 0) {
        State *update;
        BufferAttributes *attributes;
        size_t size;
        TRY(TRITONBACKEND_StateNew(&update, request, "OUTPUT_STATE", TYPE_INT32, shape, 1));
        TRY(TRITONBACKEND_StateBuffer(update, &buffer, sizeof sum, &type, &id));
        TRY(TRITONBACKEND_StateBufferAttributes(update, &attributes));
        TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
        if (size != sizeof sum) {
            return TRITONSERVER_ErrorNew(INTERNAL, "the buffer of the state has another size");
        }
        memcpy(buffer, &sum, sizeof sum);
        TRY(TRITONBACKEND_StateUpdate(update));
    }
    Output *output;
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, shape, 1));
    TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof sum, &type, &id));
    memcpy(buffer, &sum, sizeof sum);
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    (void)instance;
    for (uint32_t index = 0; index < count; index++) {
        Response *response;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
        Error *failed = run(requests[index], response);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, FINAL, failed));
        TRITONSERVER_ErrorDelete(failed);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    return NULL;
}

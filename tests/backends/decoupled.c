/* A decoupled model: IN says how many responses OUT there are, 0 and up. They come from a thread of its own, after the
 * request was released. With FAIL as a parameter of the request the last but one is an error. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

typedef struct {
    Factory *factory;
    int32_t count;
    bool fails;
} Work;

static Error *answer(Factory *factory, int32_t value) {
    Response *response;
    Output *output;
    int64_t shape[] = {1};
    void *buffer;
    uint32_t type = MEMORY_CPU;
    int64_t id = 0;
    TRY(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_INT32, shape, 1));
    TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof value, &type, &id));
    memcpy(buffer, &value, sizeof value);
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, "number", value));
    return TRITONBACKEND_ResponseSend(response, 0, NULL);
}

static void *work(void *argument) {
    Work *work = argument;
    for (int32_t value = 0; value < work->count; value++) {
        bool is_cancelled = false;
        TRITONBACKEND_ResponseFactoryIsCancelled(work->factory, &is_cancelled);
        if (is_cancelled) {
            break;
        }
        if (work->fails && value == work->count - 1) {
            Response *response;
            TRITONBACKEND_ResponseNewFromFactory(&response, work->factory);
            Error *error = TRITONSERVER_ErrorNew(UNAVAILABLE, "on purpose");
            TRITONBACKEND_ResponseSend(response, 0, error);
            TRITONSERVER_ErrorDelete(error);
            continue;
        }
        TRITONSERVER_ErrorDelete(answer(work->factory, value));
        usleep(1000);
    }
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactorySendFlags(work->factory, FINAL));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactoryDelete(work->factory));
    free(work);
    return NULL;
}

static Error *begin(Request *request) {
    Input *input;
    const void *buffer;
    uint64_t size;
    uint32_t type, count;
    int64_t id;
    TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
    Work *work_item = calloc(1, sizeof *work_item);
    memcpy(&work_item->count, buffer, sizeof work_item->count);
    TRY(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t index = 0; index < count; index++) {
        const char *key;
        const void *value;
        TRY(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
        work_item->fails |= strcmp(key, "FAIL") == 0;
    }
    TRY(TRITONBACKEND_ResponseFactoryNew(&work_item->factory, request));
    pthread_t thread;
    pthread_create(&thread, NULL, work, work_item);
    pthread_detach(thread);
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    (void)instance;
    for (uint32_t index = 0; index < count; index++) {
        TRY(begin(requests[index]));
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    return NULL;
}

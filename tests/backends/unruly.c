/* Does what a backend should not: IN says what, and OUT is IN where nothing is said. The parameter `stage` of the model
 * names a stage of a load that crashes; the setting `crash` of the backend has its initialization do so. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

enum {
    SEGV = 101,
    ABORT,
    EXIT,
    /* A thread of its own crashes while the run goes on. */
    THREAD_SEGV,
    /* The run never returns. */
    HANG,
    /* The run returns, and nothing ever answers. */
    FORGET,
    /* 32 MiB stay with the process. */
    LEAK,
    /* Answered later, from a thread of its own. */
    LATER,
    /* Kept without an answer, until RELEASE comes. */
    HOLD,
    RELEASE,
    /* As HANG, until the request is cancelled. */
    UNTIL_CANCELLED,
    /* This and the number of a signal: raises it. */
    RAISE = 200,
};

#define HELD_MAX 8192
static Factory *held[HELD_MAX];
static size_t held_count;
/* What leaked last: a compiler leaves out what nobody sees. */
static char *volatile leaked;

static void crash(void) {
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
}

static Error *has_text(Message *message, const char *text, bool *has) {
    const char *json;
    size_t size;
    TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
    *has = memmem(json, size, text, strlen(text)) != NULL;
    return NULL;
}

static Error *stage(Model *model, const char *name) {
    Message *config;
    char wanted[64];
    bool crashes, hangs;
    TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
    snprintf(wanted, sizeof wanted, "{\"string_value\":\"%s\"}", name);
    Error *failed = has_text(config, wanted, &crashes);
    snprintf(wanted, sizeof wanted, "{\"string_value\":\"%s hangs\"}", name);
    failed = failed ? failed : has_text(config, wanted, &hangs);
    TRITONSERVER_MessageDelete(config);
    if (!failed && crashes) {
        crash();
    }
    while (!failed && hangs) {
        pause();
    }
    return failed;
}

EXPORTED Error *TRITONBACKEND_Initialize(Backend *backend) {
    Message *config;
    bool crashes;
    TRY(TRITONBACKEND_BackendConfig(backend, &config));
    TRY(has_text(config, "\"crash\":\"yes\"", &crashes));
    if (crashes) {
        abort();
    }
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInitialize(Model *model) { return stage(model, "ModelInitialize"); }

EXPORTED Error *TRITONBACKEND_ModelFinalize(Model *model) { return stage(model, "ModelFinalize"); }

EXPORTED Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance) {
    Model *model;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    return stage(model, "ModelInstanceInitialize");
}

static Error *fill(Response *response, int32_t value) {
    Output *output;
    int64_t shape[] = {1, 1};
    uint32_t type = MEMORY_CPU;
    int64_t id = 0;
    void *buffer;
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_INT32, shape, 2));
    TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof value, &type, &id));
    memcpy(buffer, &value, sizeof value);
    return NULL;
}

static void answer(Factory *factory) {
    Response *response;
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    TRITONSERVER_ErrorDelete(fill(response, LATER));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactoryDelete(factory));
}

static void *answer_later(void *argument) {
    usleep(20 * 1000);
    answer(argument);
    return NULL;
}

static void *crash_soon(void *argument) {
    (void)argument;
    usleep(1000);
    crash();
    return NULL;
}

static void detach(void *(*body)(void *), void *argument) {
    pthread_t thread;
    pthread_create(&thread, NULL, body, argument);
    pthread_detach(thread);
}

static void release_held(void) {
    while (held_count > 0) {
        answer(held[--held_count]);
    }
}

static Error *wait_for_cancellation(Request *request) {
    bool is_cancelled = false;
    while (!is_cancelled) {
        usleep(1000);
        TRY(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
    }
    return TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, "the request was cancelled");
}

/* Whether the request is answered now. */
static Error *obey(Request *request, int32_t value, bool *is_answered) {
    Factory *factory;
    *is_answered = true;
    if (value > RAISE && value < RAISE + 32) {
        raise(value - RAISE);
    }
    switch (value) {
        case SEGV: crash(); break;
        case ABORT: abort();
        case EXIT: exit(7);
        case THREAD_SEGV:
            detach(crash_soon, NULL);
            usleep(2 * 1000 * 1000);
            break;
        case HANG:
            for (;;) {
                pause();
            }
        case LEAK: {
            leaked = malloc(32 << 20);
            memset(leaked, 1, 32 << 20);
            break;
        }
        case FORGET:
            *is_answered = false;
            return TRITONBACKEND_ResponseFactoryNew(&factory, request);
        case LATER:
            *is_answered = false;
            TRY(TRITONBACKEND_ResponseFactoryNew(&factory, request));
            detach(answer_later, factory);
            break;
        case HOLD:
            *is_answered = false;
            TRY(TRITONBACKEND_ResponseFactoryNew(&held[held_count % HELD_MAX], request));
            held_count++;
            break;
        case UNTIL_CANCELLED: return wait_for_cancellation(request);
        case RELEASE: release_held(); break;
        default: break;
    }
    return NULL;
}

static Error *run(Request *request) {
    Input *input;
    const void *buffer;
    uint64_t size;
    uint32_t type;
    int64_t id;
    int32_t value;
    bool is_answered;
    Response *response;
    TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
    memcpy(&value, buffer, sizeof value);
    TRY(obey(request, value, &is_answered));
    if (!is_answered) {
        return NULL;
    }
    TRY(TRITONBACKEND_ResponseNew(&response, request));
    TRY(fill(response, value));
    return TRITONBACKEND_ResponseSend(response, FINAL, NULL);
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    (void)instance;
    for (uint32_t index = 0; index < count; index++) {
        TRITONSERVER_ErrorDelete(run(requests[index]));
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    return NULL;
}

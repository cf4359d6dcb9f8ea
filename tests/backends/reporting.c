/* Answers IN as OUT at once, waits with the release until the file exists that the parameter UNTIL names, and reports its
 * own times: seconds, which no run takes. It reports a failure of 13 and of 99, which it answers with an error. With the
 * parameter RESPONSES it is decoupled, answers as often, and reports each response. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

enum { SECOND = 1000000000 };

typedef struct {
    int32_t value;
    int64_t responses;
    const char *until;
} Work;

EXPORTED Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance) {
    Message *policy;
    const char *json;
    size_t size;
    char line[256];
    TRY(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
    TRY(TRITONSERVER_MessageSerializeToJson(policy, &json, &size));
    snprintf(line, sizeof line, "host policy %.*s", (int)size, json);
    return TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, line);
}

static Error *read_work(Request *request, Work *work) {
    Input *input;
    const void *buffer;
    uint64_t size;
    uint32_t type, count;
    int64_t id;
    TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
    memcpy(&work->value, buffer, sizeof work->value);
    TRY(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t index = 0; index < count; index++) {
        const char *key;
        const void *value;
        TRY(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
        if (strcmp(key, "UNTIL") == 0) {
            work->until = value;
        }
        if (strcmp(key, "RESPONSES") == 0) {
            work->responses = *(const int64_t *)value;
        }
    }
    return NULL;
}

static Error *send(Response *response, int32_t value, uint32_t dims, uint32_t flags) {
    Output *output;
    int64_t shape[] = {1, 1};
    uint32_t type = MEMORY_CPU;
    int64_t id = 0;
    void *buffer;
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_INT32, shape, dims));
    TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof value, &type, &id));
    memcpy(buffer, &value, sizeof value);
    return TRITONBACKEND_ResponseSend(response, flags, NULL);
}

/* Reports a response that took 5 ns in the model, and 2 ns for its outputs if it has some. */
static Error *report(Instance *instance, Factory *factory, bool has_outputs, Error *error) {
    Statistics *statistics;
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, 1000));
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, has_outputs ? 1005 : 0));
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, has_outputs ? 1007 : 1005));
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error));
    TRY(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
    return TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics);
}

static Error *answer_often(Instance *instance, Request *request, const Work *work) {
    Factory *factory;
    Response *response;
    TRY(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    for (int64_t index = 0; index < work->responses; index++) {
        TRY(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
        TRY(send(response, work->value, 1, 0));
        TRY(report(instance, factory, true, NULL));
    }
    Error *error = TRITONSERVER_ErrorNew(UNAVAILABLE, "on purpose");
    TRY(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    TRY(TRITONBACKEND_ResponseSend(response, 0, error));
    TRY(report(instance, factory, false, error));
    TRITONSERVER_ErrorDelete(error);
    TRY(TRITONBACKEND_ResponseFactorySendFlags(factory, FINAL));
    TRY(report(instance, factory, false, NULL));
    return TRITONBACKEND_ResponseFactoryDelete(factory);
}

static Error *answer(Request *request, const Work *work) {
    Response *response;
    TRY(TRITONBACKEND_ResponseNew(&response, request));
    if (work->value != 99) {
        return send(response, work->value, 2, FINAL);
    }
    Error *error = TRITONSERVER_ErrorNew(INTERNAL, "on purpose");
    TRY(TRITONBACKEND_ResponseSend(response, FINAL, error));
    TRITONSERVER_ErrorDelete(error);
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    uint64_t start = 1000, input_end = start + 1ull * SECOND, infer_end = input_end + 2ull * SECOND;
    uint64_t end = infer_end + 3ull * SECOND;
    for (uint32_t index = 0; index < count; index++) {
        Work work = {0};
        TRY(read_work(requests[index], &work));
        TRY(work.responses ? answer_often(instance, requests[index], &work) : answer(requests[index], &work));
        while (work.until && access(work.until, F_OK) != 0) {
            usleep(1000);
        }
        bool is_success = work.value != 13 && work.value != 99;
        TRY(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], is_success, start, input_end, infer_end,
                                                        end));
        TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, "it releases the request");
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    return TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 7, start, input_end, infer_end, end);
}

/* Completes its configuration: one input and one output, batches of 8, and instances by preference. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "host.h"

EXPORTED Error *TRITONBACKEND_GetBackendAttribute(Backend *backend, Attribute *attributes) {
    (void)backend;
    TRY(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true));
    return TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, 3, 3, NULL, 0);
}

EXPORTED Error *TRITONBACKEND_ModelInitialize(Model *model) {
    bool completes;
    TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
    const char *config =
        "{\"max_batch_size\":8,\"input\":[{\"name\":\"INPUT0\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1]}],"
        "\"output\":[{\"name\":\"OUTPUT0\",\"data_type\":\"TYPE_INT32\",\"dims\":[1]}]}";
    Message *message;
    TRY(TRITONSERVER_MessageNewFromSerializedJson(&message, config, strlen(config)));
    Error *failed = TRITONBACKEND_ModelSetConfig(model, 1, message);
    TRITONSERVER_MessageDelete(message);
    if (!completes) {
        /* Refused then, which is right. */
        TRITONSERVER_ErrorDelete(failed);
        return NULL;
    }
    TRY(failed);
    /* From now on it sees the whole configuration, with its own part. */
    const char *json;
    size_t size;
    TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
    TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
    const char *own = "\"backend\":\"completing\"", *set = "\"name\":\"INPUT0\"";
    bool is_whole = memmem(json, size, own, strlen(own)) && memmem(json, size, set, strlen(set));
    TRITONSERVER_MessageDelete(message);
    return is_whole ? NULL : TRITONSERVER_ErrorNew(INTERNAL, "the configuration is not the completed one");
}

/* Answers the size of the batch that the request was in. */
EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    (void)instance;
    for (uint32_t index = 0; index < count; index++) {
        Response *response;
        Output *output;
        int64_t shape[] = {1, 1};
        uint32_t type = MEMORY_CPU;
        int64_t id = 0;
        void *buffer;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
        TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TYPE_INT32, shape, 2));
        TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof count, &type, &id));
        memcpy(buffer, &count, sizeof count);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    return NULL;
}

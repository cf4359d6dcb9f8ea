/* Fails at the stage that the parameter `stage` of the model names, and logs each stage that it reaches. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "host.h"

static Error *stage(Model *model, const char *name) {
    Message *config;
    const char *json;
    size_t size;
    TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, name);
    TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
    TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
    char wanted[64];
    int length = snprintf(wanted, sizeof wanted, "{\"string_value\":\"%s\"}", name);
    Error *failed = memmem(json, size, wanted, (size_t)length) ? TRITONSERVER_ErrorNew(UNAVAILABLE, name) : NULL;
    TRITONSERVER_MessageDelete(config);
    return failed;
}

EXPORTED Error *TRITONBACKEND_ModelInitialize(Model *model) { return stage(model, "ModelInitialize"); }

EXPORTED Error *TRITONBACKEND_ModelFinalize(Model *model) { return stage(model, "ModelFinalize"); }

EXPORTED Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance) {
    Model *model;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    return stage(model, "ModelInstanceInitialize");
}

EXPORTED Error *TRITONBACKEND_ModelInstanceFinalize(Instance *instance) {
    Model *model;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    return stage(model, "ModelInstanceFinalize");
}

/* Fails, or forgets its requests: releases them without a response. */
EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    Model *model;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(stage(model, "ModelInstanceExecute"));
    for (uint32_t index = 0; index < count; index++) {
        TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL);
    }
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceReady(Instance *instance) {
    Model *model;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    return stage(model, "ModelInstanceReady");
}

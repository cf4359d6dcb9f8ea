/* A batching strategy: at most two requests go together. */
#include <stdlib.h>

#include "host.h"

EXPORTED Error *TRITONBACKEND_ModelBatcherInitialize(void **batcher, Model *model) {
    const char *name;
    TRY(TRITONBACKEND_ModelName(model, &name));
    int *limit = malloc(sizeof *limit);
    *limit = 2;
    *batcher = limit;
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelBatcherFinalize(void *batcher) {
    free(batcher);
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelBatchInitialize(const void *batcher, void **batch) {
    int *left = malloc(sizeof *left);
    *left = *(const int *)batcher;
    *batch = left;
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelBatchFinalize(void *batch) {
    free(batch);
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelBatchIncludeRequest(Request *request, void *batch, bool *includes) {
    const char *id;
    TRY(TRITONBACKEND_RequestId(request, &id));
    int *left = batch;
    *includes = *left > 0;
    *left -= 1;
    return NULL;
}

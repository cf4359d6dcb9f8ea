/* Needs a newer version of the interface than any host has. With NO_EXECUTE it lacks the function that is required, with
 * UNLINKED it needs one that no library has. */
#include <stdio.h>

#include "host.h"

#ifdef UNLINKED
void nowhere(void);

EXPORTED Error *TRITONBACKEND_Finalize(Backend *backend) {
    (void)backend;
    nowhere();
    return NULL;
}
#endif

EXPORTED Error *TRITONBACKEND_Initialize(Backend *backend) {
    uint32_t major, minor;
    const char *name;
    TRY(TRITONBACKEND_BackendName(backend, &name));
    TRY(TRITONBACKEND_ApiVersion(&major, &minor));
    return major == 2 ? NULL : TRITONSERVER_ErrorNew(UNSUPPORTED, "triton backend API version does not support this backend");
}

#ifndef NO_EXECUTE
EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    (void)instance, (void)requests, (void)count;
    return NULL;
}
#endif

/* The part of probe.c that calls the server: a request to the model `echo`, which answers OUT = IN, and model control. */

typedef struct {
    int responses, frees, starts;
    bool is_final, is_released, is_right;
} Seen;

static Error *allocate(Allocator *allocator, const char *name, size_t size, uint32_t type, int64_t id, void *user,
                       void **buffer, void **buffer_user, uint32_t *actual_type, int64_t *actual_id) {
    (void)allocator, (void)name, (void)type, (void)id;
    *buffer = malloc(size + 1);
    *buffer_user = user;
    *actual_type = MEMORY_CPU;
    *actual_id = 0;
    return NONE;
}

static Error *take_back(Allocator *allocator, void *buffer, void *buffer_user, size_t size, uint32_t type, int64_t id) {
    (void)allocator, (void)size, (void)type, (void)id;
    free(buffer);
    ((Seen *)buffer_user)->frees++;
    return NONE;
}

static Error *start(Allocator *allocator, void *user) {
    (void)allocator;
    ((Seen *)user)->starts++;
    return NONE;
}

static void read_response(InferenceResponse *response, Seen *seen) {
    const char *text;
    uint32_t count, type, memory_type;
    int64_t version, memory_id;
    const int64_t *shape;
    uint64_t dims;
    const void *base;
    size_t size;
    void *user;
    const void *value;
    IS(TRITONSERVER_InferenceResponseError(response) == NONE);
    WORKS(TRITONSERVER_InferenceResponseModel(response, &text, &version));
    IS(!strcmp(text, "echo"));
    WORKS(TRITONSERVER_InferenceResponseId(response, &text));
    IS(!strcmp(text, "call"));
    WORKS(TRITONSERVER_InferenceResponseParameterCount(response, &count));
    IS(count == 0);
    FAILS(TRITONSERVER_InferenceResponseParameter(response, 0, &text, &type, &value), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceResponseOutputCount(response, &count));
    IS(count == 1);
    WORKS(TRITONSERVER_InferenceResponseOutput(response, 0, &text, &type, &shape, &dims, &base, &size, &memory_type,
                                               &memory_id, &user));
    seen->is_right = type == TYPE_INT32 && size == 8 && !memcmp(base, "abcdefgh", 8) && user == seen;
    FAILS(TRITONSERVER_InferenceResponseOutput(response, 1, &text, &type, &shape, &dims, &base, &size, &memory_type,
                                               &memory_id, &user),
          INVALID_ARG);
}

static void respond(InferenceResponse *response, uint32_t flags, void *user) {
    Seen *seen = user;
    pthread_mutex_lock(&lock);
    if (response) {
        seen->responses++;
        read_response(response, seen);
        WORKS(TRITONSERVER_InferenceResponseDelete(response));
        FAILS(TRITONSERVER_InferenceResponseDelete(response), INVALID_ARG);
    }
    seen->is_final |= flags & FINAL;
    pthread_mutex_unlock(&lock);
}

static void release(InferenceRequest *request, uint32_t flags, void *user) {
    pthread_mutex_lock(&lock);
    IS(flags == RELEASE_ALL);
    WORKS(TRITONSERVER_InferenceRequestDelete(request));
    FAILS(TRITONSERVER_InferenceRequestDelete(request), INVALID_ARG);
    ((Seen *)user)->is_released = true;
    pthread_cond_signal(&released_condition);
    pthread_mutex_unlock(&lock);
}

static void probe_fields(InferenceRequest *request) {
    const char *text;
    uint64_t number;
    uint32_t small;
    bool is_so;
    WORKS(TRITONSERVER_InferenceRequestSetId(request, "call"));
    WORKS(TRITONSERVER_InferenceRequestId(request, &text));
    IS(!strcmp(text, "call"));
    WORKS(TRITONSERVER_InferenceRequestSetFlags(request, 3));
    WORKS(TRITONSERVER_InferenceRequestFlags(request, &small));
    IS(small == 3);
    WORKS(TRITONSERVER_InferenceRequestSetFlags(request, 0));
    WORKS(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "sequence"));
    WORKS(TRITONSERVER_InferenceRequestCorrelationIdString(request, &text));
    IS(!strcmp(text, "sequence"));
    FAILS(TRITONSERVER_InferenceRequestCorrelationId(request, &number), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceRequestSetCorrelationId(request, 0));
    WORKS(TRITONSERVER_InferenceRequestCorrelationId(request, &number));
    IS(number == 0);
    WORKS(TRITONSERVER_InferenceRequestSetPriority(request, 2));
    WORKS(TRITONSERVER_InferenceRequestPriority(request, &small));
    WORKS(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 0));
    WORKS(TRITONSERVER_InferenceRequestPriorityUInt64(request, &number));
    WORKS(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 9));
    WORKS(TRITONSERVER_InferenceRequestTimeoutMicroseconds(request, &number));
    IS(number == 9);
    WORKS(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 0));
    WORKS(TRITONSERVER_InferenceRequestSetStringParameter(request, "a", "b"));
    WORKS(TRITONSERVER_InferenceRequestSetIntParameter(request, "a", 1));
    WORKS(TRITONSERVER_InferenceRequestSetBoolParameter(request, "a", true));
    WORKS(TRITONSERVER_InferenceRequestSetDoubleParameter(request, "a", 1));
    WORKS(TRITONSERVER_InferenceRequestCancel(request));
    WORKS(TRITONSERVER_InferenceRequestIsCancelled(request, &is_so));
    IS(!is_so);
}

static void probe_tensors(InferenceRequest *request) {
    int64_t shape[] = {2};
    BufferAttributes *attributes;
    WORKS(TRITONSERVER_InferenceRequestAddInput(request, "x", TYPE_INT32, shape, 1));
    FAILS(TRITONSERVER_InferenceRequestAddInput(request, "x", TYPE_INT32, shape, 1), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceRequestRemoveInput(request, "x"));
    FAILS(TRITONSERVER_InferenceRequestRemoveInput(request, "x"), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
    WORKS(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_INT32, shape, 1));
    FAILS(TRITONSERVER_InferenceRequestAppendInputData(request, "x", "abcd", 4, MEMORY_CPU, 0), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", "abcd", 4, MEMORY_GPU, 0), UNSUPPORTED);
    WORKS(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", "zzzz", 4, MEMORY_CPU, 0));
    WORKS(TRITONSERVER_InferenceRequestRemoveAllInputData(request, "IN"));
    WORKS(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "IN", "abcd", 4, MEMORY_CPU, 0, "cpu"));
    WORKS(TRITONSERVER_BufferAttributesNew(&attributes));
    WORKS(TRITONSERVER_BufferAttributesSetByteSize(attributes, 4));
    WORKS(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(request, "IN", "efgh", attributes));
    WORKS(TRITONSERVER_BufferAttributesDelete(attributes));
    WORKS(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "x"));
    WORKS(TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, "x"));
    WORKS(TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request));
    WORKS(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT"));
}

static void probe_control(Server *server) {
    bool is_so;
    uint32_t flags;
    void *reserved;
    const char *identity =
        "{\"backend\":\"identity\",\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_INT32\",\"dims\":[2]}],"
        "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_INT32\",\"dims\":[2]}]}";
    Parameter *config = TRITONSERVER_ParameterNew("config", 0, identity);
    Parameter *file = TRITONSERVER_ParameterBytesNew("file:1/a", "abc", 3);
    Parameter *odd = TRITONSERVER_ParameterNew("odd", 0, "{}");
    const Parameter *right[] = {config, file}, *wrong[] = {odd};
    WORKS(TRITONSERVER_ServerIsLive(server, &is_so));
    IS(is_so);
    WORKS(TRITONSERVER_ServerModelIsReady(server, "echo", -1, &is_so));
    IS(is_so);
    FAILS(TRITONSERVER_ServerModelIsReady(server, "echo", -7, &is_so), INVALID_ARG);
    FAILS(TRITONSERVER_ServerModelIsReady(server, NONE, -1, &is_so), INVALID_ARG);
    WORKS(TRITONSERVER_ServerModelTransactionProperties(server, "echo", -1, &flags, &reserved));
    IS(flags == 1);
    FAILS(TRITONSERVER_ServerModelTransactionProperties(server, "absent", -1, &flags, NONE), NOT_FOUND);
    WORKS(TRITONSERVER_ServerLoadModel(server, "other"));
    WORKS(TRITONSERVER_ServerLoadModelWithParameters(server, "other", right, 2));
    FAILS(TRITONSERVER_ServerLoadModelWithParameters(server, "other", wrong, 1), INVALID_ARG);
    WORKS(TRITONSERVER_ServerUnloadModel(server, "other"));
    WORKS(TRITONSERVER_ServerUnloadModelAndDependents(server, "other"));
    TRITONSERVER_ParameterDelete(config);
    TRITONSERVER_ParameterDelete(file);
    TRITONSERVER_ParameterDelete(odd);
}

static void probe_calls(Instance *instance) {
    Model *model;
    Server *server;
    Allocator *allocator;
    InferenceRequest *request;
    Seen seen = {0};
    WORKS(TRITONBACKEND_ModelInstanceModel(instance, &model));
    WORKS(TRITONBACKEND_ModelServer(model, &server));
    probe_control(server);
    FAILS(TRITONSERVER_ResponseAllocatorNew(&allocator, NONE, take_back, start), INVALID_ARG);
    WORKS(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, take_back, start));
    FAILS(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, NONE), INVALID_ARG);
    WORKS(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, (void *)start));
    WORKS(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, (void *)start));
    FAILS(TRITONSERVER_InferenceRequestNew(&request, NONE, "echo", -1), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceRequestNew(&request, server, "echo", -9), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceRequestNew(&request, server, "echo", -1));
    probe_fields(request);
    probe_tensors(request);
    FAILS(TRITONSERVER_ServerInferAsync(server, request, NONE), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceRequestSetReleaseCallback(request, release, &seen));
    FAILS(TRITONSERVER_ServerInferAsync(server, request, NONE), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, &seen, respond, &seen));
    pthread_mutex_lock(&lock);
    WORKS(TRITONSERVER_ServerInferAsync(server, request, NONE));
    /* It is the server's now. */
    FAILS(TRITONSERVER_ServerInferAsync(server, request, NONE), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceRequestSetId(request, "other"), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceRequestDelete(request), INVALID_ARG);
    while (!seen.is_released) {
        pthread_cond_wait(&released_condition, &lock);
    }
    pthread_mutex_unlock(&lock);
    IS(seen.responses == 1 && seen.frees == 1 && seen.starts == 1 && seen.is_final && seen.is_right);
    WORKS(TRITONSERVER_ResponseAllocatorDelete(allocator));
    FAILS(TRITONSERVER_ResponseAllocatorDelete(allocator), INVALID_ARG);
}

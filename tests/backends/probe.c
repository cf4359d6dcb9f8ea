/* Calls every function of the interface, in right and in wrong orders: with null pointers, with objects of another kind,
 * twice, after the end. A request is answered with what was not as it should be, or with its own input. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

static char faults[8192];
static const int ANYTHING = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released_condition = PTHREAD_COND_INITIALIZER;

static void fault(const char *what, int line, const char *text) {
    size_t used = strlen(faults);
    snprintf(faults + used, sizeof faults - used, "line %d: %s: %s\n", line, what, text);
}

/* The code of an error, which is deleted; -2 for none. */
static int code(Error *error) {
    if (!error) {
        return -2;
    }
    int code = (int)TRITONSERVER_ErrorCode(error);
    TRITONSERVER_ErrorDelete(error);
    return code;
}

static void expect_works(Error *error, const char *what, int line) {
    if (error) {
        fault(what, line, TRITONSERVER_ErrorMessage(error));
        TRITONSERVER_ErrorDelete(error);
    }
}

static void expect_fails(Error *error, int wanted, const char *what, int line) {
    int got = code(error);
    if (got == -2 || (wanted != ANYTHING && got != wanted)) {
        char text[64];
        snprintf(text, sizeof text, "wanted code %d, got %d", wanted, got);
        fault(what, line, text);
    }
}

static void expect(bool is_so, const char *what, int line) {
    if (!is_so) {
        fault(what, line, "is not so");
    }
}

#define WORKS(call) expect_works((call), #call, __LINE__)
#define FAILS(call, code) expect_fails((call), (code), #call, __LINE__)
#define IS(condition) expect((condition), #condition, __LINE__)
#define NONE ((void *)0)

static void probe_values(void) {
    uint32_t major = 0, minor = 0;
    WORKS(TRITONBACKEND_ApiVersion(&major, &minor));
    IS(major == 1 && minor == 19);
    WORKS(TRITONSERVER_ApiVersion(&major, &minor));
    IS(major == 1 && minor == 34);
    FAILS(TRITONBACKEND_ApiVersion(NONE, &minor), INVALID_ARG);
    IS(!strcmp(TRITONSERVER_DataTypeString(TYPE_FP32), "FP32"));
    IS(!strcmp(TRITONSERVER_DataTypeString(99), "<invalid>"));
    IS(TRITONSERVER_StringToDataType("BYTES") == TYPE_BYTES && TRITONSERVER_StringToDataType("x") == 0);
    IS(TRITONSERVER_StringToDataType(NONE) == 0);
    IS(TRITONSERVER_DataTypeByteSize(TYPE_INT64) == 8 && TRITONSERVER_DataTypeByteSize(TYPE_BYTES) == 0);
    IS(!strcmp(TRITONSERVER_MemoryTypeString(MEMORY_CPU_PINNED), "CPU_PINNED"));
    IS(!strcmp(TRITONSERVER_ParameterTypeString(4), "BYTES"));
    IS(!strcmp(TRITONSERVER_InstanceGroupKindString(1), "CPU"));
    IS(!strcmp(TRITONSERVER_InferenceTraceLevelString(4), "TIMESTAMPS"));
    IS(!strcmp(TRITONSERVER_InferenceTraceActivityString(10), "CUSTOM_ACTIVITY"));
    IS(TRITONSERVER_LogIsEnabled(LOG_ERROR) && !TRITONSERVER_LogIsEnabled(9));
    WORKS(TRITONSERVER_LogMessage(LOG_INFO, "/far/away/probe.c", 7, "a line"));
    FAILS(TRITONSERVER_LogMessage(LOG_INFO, "probe.c", 7, NONE), INVALID_ARG);
    FAILS(TRITONSERVER_LogMessage(9, "probe.c", 7, "a line"), INVALID_ARG);
    FAILS(TRITONSERVER_ServerNew(NONE, NONE), UNSUPPORTED);
}

static void probe_errors(void) {
    Error *error = TRITONSERVER_ErrorNew(NOT_FOUND, "a text");
    IS(TRITONSERVER_ErrorCode(error) == NOT_FOUND);
    IS(!strcmp(TRITONSERVER_ErrorCodeString(error), "Not found"));
    IS(!strcmp(TRITONSERVER_ErrorMessage(error), "a text"));
    TRITONSERVER_ErrorDelete(error);
    TRITONSERVER_ErrorDelete(error);
    TRITONSERVER_ErrorDelete(NONE);
    IS(TRITONSERVER_ErrorCode(error) == UNKNOWN && TRITONSERVER_ErrorMessage(error) != NONE);
    error = TRITONSERVER_ErrorNew(99, NONE);
    IS(TRITONSERVER_ErrorCode(error) == UNKNOWN && !strcmp(TRITONSERVER_ErrorMessage(error), ""));
    TRITONSERVER_ErrorDelete(error);
}

static void probe_messages(void) {
    Message *message = NONE;
    const char *base;
    size_t size;
    WORKS(TRITONSERVER_MessageNewFromSerializedJson(&message, "{\"a\":1}", 7));
    WORKS(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
    IS(size == 7 && !memcmp(base, "{\"a\":1}", 7));
    WORKS(TRITONSERVER_MessageDelete(message));
    FAILS(TRITONSERVER_MessageDelete(message), INVALID_ARG);
    FAILS(TRITONSERVER_MessageSerializeToJson(message, &base, &size), INVALID_ARG);
    FAILS(TRITONSERVER_MessageNewFromSerializedJson(&message, "{", 1), INVALID_ARG);
    FAILS(TRITONSERVER_MessageNewFromSerializedJson(&message, NONE, 5), INVALID_ARG);
    FAILS(TRITONSERVER_MessageNewFromSerializedJson(NONE, "1", 1), INVALID_ARG);
}

static void probe_parameters(void) {
    int64_t number = 7;
    Parameter *parameter = TRITONSERVER_ParameterNew("a", 1, &number);
    IS(parameter != NONE);
    TRITONSERVER_ParameterDelete(parameter);
    TRITONSERVER_ParameterDelete(parameter);
    TRITONSERVER_ParameterDelete(NONE);
    IS(TRITONSERVER_ParameterNew(NONE, 1, &number) == NONE);
    IS(TRITONSERVER_ParameterNew("a", 1, NONE) == NONE && TRITONSERVER_ParameterNew("a", 9, &number) == NONE);
    parameter = TRITONSERVER_ParameterBytesNew("file:1/a", "bytes", 5);
    IS(parameter != NONE && TRITONSERVER_ParameterBytesNew("file:1/a", NONE, 5) == NONE);
    TRITONSERVER_ParameterDelete(parameter);
}

static void probe_memory(Backend *backend) {
    MemoryManager *memory;
    void *buffer = NONE;
    WORKS(TRITONBACKEND_BackendMemoryManager(backend, &memory));
    WORKS(TRITONBACKEND_MemoryManagerAllocate(memory, &buffer, MEMORY_CPU, 0, 1000));
    memset(buffer, 1, 1000);
    WORKS(TRITONBACKEND_MemoryManagerFree(memory, buffer, MEMORY_CPU, 0));
    FAILS(TRITONBACKEND_MemoryManagerFree(memory, buffer, MEMORY_CPU, 0), INVALID_ARG);
    FAILS(TRITONBACKEND_MemoryManagerAllocate(memory, &buffer, MEMORY_GPU, 0, 1000), UNSUPPORTED);
    FAILS(TRITONBACKEND_MemoryManagerAllocate(memory, &buffer, MEMORY_CPU, 0, UINT64_MAX), UNAVAILABLE);
    FAILS(TRITONBACKEND_MemoryManagerAllocate(NONE, &buffer, MEMORY_CPU, 0, 10), INVALID_ARG);

    BufferAttributes *attributes;
    size_t size;
    uint32_t type;
    int64_t id;
    void *handle;
    WORKS(TRITONSERVER_BufferAttributesNew(&attributes));
    WORKS(TRITONSERVER_BufferAttributesSetByteSize(attributes, 5));
    WORKS(TRITONSERVER_BufferAttributesSetMemoryType(attributes, MEMORY_GPU));
    WORKS(TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 3));
    WORKS(TRITONSERVER_BufferAttributesSetCudaIpcHandle(attributes, &size));
    WORKS(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
    WORKS(TRITONSERVER_BufferAttributesMemoryType(attributes, &type));
    WORKS(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &id));
    WORKS(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle));
    IS(size == 5 && type == MEMORY_GPU && id == 3 && handle == &size);
    WORKS(TRITONSERVER_BufferAttributesDelete(attributes));
    FAILS(TRITONSERVER_BufferAttributesDelete(attributes), INVALID_ARG);
}

static void probe_metrics(void) {
    Family *family;
    Metric *metric;
    MetricArgs *arguments;
    uint32_t kind;
    double value, buckets[] = {1, 2};
    Parameter *label = TRITONSERVER_ParameterNew("model", 0, "probe");
    const Parameter *labels[] = {label};
    WORKS(TRITONSERVER_MetricFamilyNew(&family, 0, "probe_total", "counts"));
    WORKS(TRITONSERVER_GetMetricFamilyKind(family, &kind));
    IS(kind == 0);
    WORKS(TRITONSERVER_MetricNew(&metric, family, labels, 1));
    WORKS(TRITONSERVER_GetMetricKind(metric, &kind));
    WORKS(TRITONSERVER_MetricIncrement(metric, 2.5));
    FAILS(TRITONSERVER_MetricIncrement(metric, -1), INVALID_ARG);
    FAILS(TRITONSERVER_MetricSet(metric, 1), UNSUPPORTED);
    FAILS(TRITONSERVER_MetricObserve(metric, 1), UNSUPPORTED);
    WORKS(TRITONSERVER_MetricValue(metric, &value));
    IS(value >= 2.5);
    /* Without its family a metric is invalid, and is still deleted. */
    WORKS(TRITONSERVER_MetricFamilyDelete(family));
    FAILS(TRITONSERVER_MetricFamilyDelete(family), INVALID_ARG);
    FAILS(TRITONSERVER_MetricValue(metric, &value), INTERNAL);
    WORKS(TRITONSERVER_MetricDelete(metric));
    FAILS(TRITONSERVER_MetricDelete(metric), INVALID_ARG);
    FAILS(TRITONSERVER_MetricNew(&metric, family, labels, 1), INVALID_ARG);
    WORKS(TRITONSERVER_MetricFamilyNew(&family, 2, "probe_histogram", "sizes"));
    WORKS(TRITONSERVER_MetricArgsNew(&arguments));
    WORKS(TRITONSERVER_MetricArgsSetHistogram(arguments, buckets, 2));
    FAILS(TRITONSERVER_MetricArgsSetHistogram(arguments, buckets, 2), INVALID_ARG);
    WORKS(TRITONSERVER_MetricNewWithArgs(&metric, family, labels, 1, arguments));
    WORKS(TRITONSERVER_MetricObserve(metric, 1.5));
    WORKS(TRITONSERVER_MetricArgsDelete(arguments));
    WORKS(TRITONSERVER_MetricArgsDelete(NONE));
    WORKS(TRITONSERVER_MetricDelete(metric));
    WORKS(TRITONSERVER_MetricFamilyDelete(family));
    FAILS(TRITONSERVER_MetricFamilyNew(&family, 7, "probe", "x"), INVALID_ARG);
    FAILS(TRITONSERVER_MetricFamilyNew(&family, 0, "a name", "x"), INVALID_ARG);
    TRITONSERVER_ParameterDelete(label);
}

EXPORTED Error *TRITONBACKEND_GetBackendAttribute(Backend *backend, Attribute *attributes) {
    uint64_t devices[] = {0};
    (void)backend;
    WORKS(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, false));
    WORKS(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, 2, 1, devices, 1));
    FAILS(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, 9, 1, NONE, 0), INVALID_ARG);
    FAILS(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(NONE, true), INVALID_ARG);
    return NONE;
}

EXPORTED Error *TRITONBACKEND_Initialize(Backend *backend) {
    const char *text;
    uint32_t number;
    void *state = &faults;
    Message *config;
    WORKS(TRITONBACKEND_BackendName(backend, &text));
    IS(!strcmp(text, "probe"));
    FAILS(TRITONBACKEND_BackendName(NONE, &text), INVALID_ARG);
    FAILS(TRITONBACKEND_BackendName((Backend *)&faults, &text), INVALID_ARG);
    WORKS(TRITONBACKEND_BackendArtifacts(backend, &number, &text));
    IS(number == 0 && text[0] == '/');
    WORKS(TRITONBACKEND_BackendConfig(backend, &config));
    WORKS(TRITONBACKEND_BackendExecutionPolicy(backend, &number));
    IS(number == 0);
    WORKS(TRITONBACKEND_BackendSetExecutionPolicy(backend, 1));
    FAILS(TRITONBACKEND_BackendSetExecutionPolicy(backend, 2), INVALID_ARG);
    WORKS(TRITONBACKEND_BackendSetState(backend, faults));
    WORKS(TRITONBACKEND_BackendState(backend, &state));
    IS(state == faults);
    probe_values();
    probe_errors();
    probe_messages();
    probe_parameters();
    probe_memory(backend);
    probe_metrics();
    return NONE;
}

EXPORTED Error *TRITONBACKEND_Finalize(Backend *backend) {
    return TRITONBACKEND_BackendSetState(backend, NONE);
}

EXPORTED Error *TRITONBACKEND_ModelInitialize(Model *model) {
    const char *text;
    uint64_t version;
    uint32_t kind;
    bool completes;
    void *state = &faults;
    Message *config;
    Server *server;
    Backend *backend;
    BufferAttributes *usage;
    WORKS(TRITONBACKEND_ModelName(model, &text));
    IS(!strcmp(text, "probe"));
    FAILS(TRITONBACKEND_ModelName((Model *)NONE, &text), INVALID_ARG);
    FAILS(TRITONBACKEND_ModelName(model, NONE), INVALID_ARG);
    WORKS(TRITONBACKEND_ModelVersion(model, &version));
    IS(version == 1);
    WORKS(TRITONBACKEND_ModelRepository(model, &kind, &text));
    IS(kind == 0 && text[0] == '/');
    WORKS(TRITONBACKEND_ModelConfig(model, 1, &config));
    FAILS(TRITONBACKEND_ModelConfig(model, 2, &config), INVALID_ARG);
    FAILS(TRITONBACKEND_ModelSetConfig(model, 1, (Message *)model), INVALID_ARG);
    FAILS(TRITONBACKEND_ModelSetConfig(model, 9, config), INVALID_ARG);
    WORKS(TRITONSERVER_MessageDelete(config));
    WORKS(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
    WORKS(TRITONBACKEND_ModelBackend(model, &backend));
    WORKS(TRITONBACKEND_ModelServer(model, &server));
    WORKS(TRITONBACKEND_ModelSetState(model, faults));
    WORKS(TRITONBACKEND_ModelState(model, &state));
    IS(state == faults);
    WORKS(TRITONSERVER_BufferAttributesNew(&usage));
    WORKS(TRITONBACKEND_ModelReportMemoryUsage(model, &usage, 1));
    FAILS(TRITONBACKEND_ModelReportMemoryUsage(model, NONE, 1), INVALID_ARG);
    WORKS(TRITONSERVER_BufferAttributesDelete(usage));
    /* An object of another kind is none of this one. */
    FAILS(TRITONBACKEND_BackendName((Backend *)model, &text), INVALID_ARG);
    return NONE;
}

EXPORTED Error *TRITONBACKEND_ModelFinalize(Model *model) { return TRITONBACKEND_ModelSetState(model, NONE); }

EXPORTED Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance) {
    const char *text;
    uint32_t number;
    int32_t device;
    int64_t id;
    bool is_passive;
    void *state = &faults;
    Message *policy;
    Model *model;
    WORKS(TRITONBACKEND_ModelInstanceName(instance, &text));
    IS(!strncmp(text, "probe", 5));
    WORKS(TRITONBACKEND_ModelInstanceKind(instance, &number));
    IS(number == 1);
    WORKS(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
    IS(device == 0);
    WORKS(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
    WORKS(TRITONBACKEND_ModelInstanceIsPassive(instance, &is_passive));
    IS(!is_passive);
    WORKS(TRITONBACKEND_ModelInstanceProfileCount(instance, &number));
    IS(number == 0);
    FAILS(TRITONBACKEND_ModelInstanceProfileName(instance, 0, &text), INVALID_ARG);
    WORKS(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &number));
    FAILS(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, 0, &text, &id), INVALID_ARG);
    WORKS(TRITONBACKEND_ModelInstanceModel(instance, &model));
    WORKS(TRITONBACKEND_ModelInstanceSetState(instance, faults));
    WORKS(TRITONBACKEND_ModelInstanceState(instance, &state));
    IS(state == faults);
    WORKS(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, NONE, 0));
    return NONE;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceFinalize(Instance *instance) {
    return TRITONBACKEND_ModelInstanceSetState(instance, NONE);
}

static void probe_input(Request *request) {
    Input *input;
    const char *text;
    uint32_t count, type, dims, buffers;
    uint64_t size;
    int64_t id;
    const int64_t *shape;
    const void *buffer;
    BufferAttributes *attributes;
    WORKS(TRITONBACKEND_RequestInputCount(request, &count));
    IS(count == 1);
    WORKS(TRITONBACKEND_RequestInputName(request, 0, &text));
    IS(!strcmp(text, "INPUT"));
    FAILS(TRITONBACKEND_RequestInputName(request, 1, &text), INVALID_ARG);
    FAILS(TRITONBACKEND_RequestInput(request, "x", &input), INVALID_ARG);
    FAILS(TRITONBACKEND_RequestInput(request, NONE, &input), INVALID_ARG);
    FAILS(TRITONBACKEND_RequestInputByIndex(request, 9, &input), INVALID_ARG);
    WORKS(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
    WORKS(TRITONBACKEND_RequestInput(request, "INPUT", &input));
    WORKS(TRITONBACKEND_InputProperties(input, &text, &type, &shape, &dims, &size, &buffers));
    IS(type == TYPE_INT32 && dims == 1 && shape[0] == 2 && size == 8 && buffers == 1);
    WORKS(TRITONBACKEND_InputProperties(input, NONE, NONE, NONE, NONE, NONE, NONE));
    WORKS(TRITONBACKEND_InputPropertiesForHostPolicy(input, "cpu", &text, &type, &shape, &dims, &size, &buffers));
    WORKS(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
    IS(type == MEMORY_CPU && size == 8 && buffer != NONE);
    FAILS(TRITONBACKEND_InputBuffer(input, 1, &buffer, &size, &type, &id), INVALID_ARG);
    IS(buffer == NONE && size == 0);
    WORKS(TRITONBACKEND_InputBufferForHostPolicy(input, "cpu", 0, &buffer, &size, &type, &id));
    WORKS(TRITONBACKEND_InputBufferAttributes(input, 0, &buffer, &attributes));
    FAILS(TRITONBACKEND_InputBuffer((Input *)request, 0, &buffer, &size, &type, &id), INVALID_ARG);
    FAILS(TRITONBACKEND_InputBuffer(NONE, 0, &buffer, &size, &type, &id), INVALID_ARG);
}

static void probe_request(Request *request) {
    const char *text;
    uint64_t number;
    uint32_t count, type;
    int64_t id;
    size_t size;
    bool is_so;
    const void *value;
    Trace *trace;
    State *state;
    int64_t shape[] = {1};
    WORKS(TRITONBACKEND_RequestId(request, &text));
    IS(!strcmp(text, "seven"));
    WORKS(TRITONBACKEND_RequestCorrelationId(request, &number));
    FAILS(TRITONBACKEND_RequestCorrelationIdString(request, &text), INVALID_ARG);
    WORKS(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &number));
    WORKS(TRITONBACKEND_RequestFlags(request, &count));
    WORKS(TRITONBACKEND_RequestIsCancelled(request, &is_so));
    IS(!is_so);
    WORKS(TRITONBACKEND_RequestParameterCount(request, &count));
    IS(count == 1);
    WORKS(TRITONBACKEND_RequestParameter(request, 0, &text, &type, &value));
    IS(!strcmp(text, "depth") && type == 1 && *(const int64_t *)value == 3);
    FAILS(TRITONBACKEND_RequestParameter(request, 1, &text, &type, &value), INVALID_ARG);
    WORKS(TRITONBACKEND_RequestOutputCount(request, &count));
    IS(count == 1);
    WORKS(TRITONBACKEND_RequestOutputName(request, 0, &text));
    IS(!strcmp(text, "OUTPUT"));
    FAILS(TRITONBACKEND_RequestOutputName(request, 1, &text), INVALID_ARG);
    WORKS(TRITONBACKEND_RequestOutputBufferProperties(request, "OUTPUT", &size, &type, &id));
    FAILS(TRITONBACKEND_RequestOutputBufferProperties(request, "x", &size, &type, &id), INVALID_ARG);
    WORKS(TRITONBACKEND_RequestTrace(request, &trace));
    IS(trace == NONE);
    FAILS(TRITONSERVER_InferenceTraceId(trace, &number), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceTraceParentId(trace, &number), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceTraceRequestId(trace, &text), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceTraceContext(trace, &text), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &trace), INVALID_ARG);
    FAILS(TRITONSERVER_InferenceTraceReportActivity(trace, 1, "x"), INVALID_ARG);
    WORKS(TRITONSERVER_InferenceTraceDelete(trace));
    FAILS(TRITONBACKEND_StateNew(&state, request, "x", TYPE_INT32, shape, 1), INVALID_ARG);
    FAILS(TRITONBACKEND_StateUpdate(NONE), INVALID_ARG);
    FAILS(TRITONBACKEND_RequestRelease(request, 0), INVALID_ARG);
    FAILS(TRITONBACKEND_RequestRelease(request, RELEASE_RESCHEDULE), INVALID_ARG);
    FAILS(TRITONBACKEND_RequestId(NONE, &text), INVALID_ARG);
    probe_input(request);
}

static void probe_statistics(Instance *instance, Factory *factory) {
    Statistics *statistics;
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
    FAILS(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics), INVALID_ARG);
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, 1));
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, 2));
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, 3));
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, NONE));
    WORKS(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, 0));
    FAILS(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics), INVALID_ARG);
    WORKS(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
    FAILS(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics), INVALID_ARG);
}

static void probe_response(Request *request, Instance *instance) {
    Response *response;
    Factory *factory;
    Output *output;
    BufferAttributes *attributes;
    const char *text;
    uint32_t type = MEMORY_GPU;
    int64_t id = 0, shape[] = {2};
    const int64_t *got_shape;
    uint64_t dims;
    void *buffer;
    bool is_cancelled;
    WORKS(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    WORKS(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
    WORKS(TRITONBACKEND_ResponseFactorySendFlags(factory, 0));
    probe_statistics(instance, factory);
    /* One that is thrown away, and none of whose parts is left. */
    WORKS(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    WORKS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, shape, 1));
    WORKS(TRITONBACKEND_ResponseDelete(response));
    FAILS(TRITONBACKEND_ResponseDelete(response), INVALID_ARG);
    FAILS(TRITONBACKEND_OutputBuffer(output, &buffer, 8, &type, &id), INVALID_ARG);
    WORKS(TRITONBACKEND_ResponseFactoryDelete(factory));
    FAILS(TRITONBACKEND_ResponseFactoryDelete(factory), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseNewFromFactory(&response, factory), INVALID_ARG);

    WORKS(TRITONBACKEND_ResponseNew(&response, request));
    WORKS(TRITONBACKEND_ResponseSetStringParameter(response, "text", "value"));
    WORKS(TRITONBACKEND_ResponseSetIntParameter(response, "int", 7));
    WORKS(TRITONBACKEND_ResponseSetBoolParameter(response, "bool", true));
    WORKS(TRITONBACKEND_ResponseSetDoubleParameter(response, "double", 0.5));
    FAILS(TRITONBACKEND_ResponseSetStringParameter(NONE, "text", "value"), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseSetStringParameter(response, NONE, "value"), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseOutput(response, &output, "x", TYPE_INT32, shape, 1), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", 99, shape, 1), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, shape, 1000), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, NONE, 1), INVALID_ARG);
    WORKS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, shape, 1));
    FAILS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, shape, 1), INVALID_ARG);
    IS(output == NONE);
    WORKS(TRITONBACKEND_InferenceResponseOutput(response, 0, &text, &type, &got_shape, &dims));
    IS(!strcmp(text, "OUTPUT") && dims == 1 && got_shape[0] == 2);
    FAILS(TRITONBACKEND_InferenceResponseOutput(response, 1, &text, &type, &got_shape, &dims), INVALID_ARG);
    WORKS(TRITONBACKEND_InferenceResponseOutputByName(response, "OUTPUT", &type, &got_shape, &dims));
    FAILS(TRITONBACKEND_InferenceResponseOutputByName(response, "x", &type, &got_shape, &dims), NOT_FOUND);
    WORKS(TRITONBACKEND_ResponseDelete(response));

    /* One whose output has memory, which goes with it. */
    Input *input;
    const void *from;
    uint64_t size;
    WORKS(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
    WORKS(TRITONBACKEND_InputBuffer(input, 0, &from, &size, &type, &id));
    WORKS(TRITONBACKEND_ResponseNew(&response, request));
    WORKS(TRITONBACKEND_ResponseSetIntParameter(response, "int", 7));
    WORKS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, shape, 1));
    type = MEMORY_GPU;
    WORKS(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id));
    IS(type == MEMORY_CPU);
    FAILS(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id), ALREADY_EXISTS);
    WORKS(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
    WORKS(TRITONBACKEND_ResponseDelete(response));
}

/* Sends the last response, with the faults that were found, if any. */
static void send(Request *request) {
    Response *response, *late;
    Output *output;
    Input *input;
    const void *from;
    uint64_t size;
    uint32_t type;
    int64_t id, shape[] = {2};
    void *buffer;
    WORKS(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
    WORKS(TRITONBACKEND_InputBuffer(input, 0, &from, &size, &type, &id));
    WORKS(TRITONBACKEND_ResponseNew(&response, request));
    WORKS(TRITONBACKEND_ResponseNew(&late, request));
    WORKS(TRITONBACKEND_ResponseSetIntParameter(response, "int", 7));
    WORKS(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_INT32, shape, 1));
    WORKS(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id));
    memcpy(buffer, from, size);
    FAILS(TRITONBACKEND_ResponseSend(NONE, FINAL, NONE), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseSend((Response *)request, FINAL, NONE), INVALID_ARG);
    Error *failed = faults[0] ? TRITONSERVER_ErrorNew(INTERNAL, faults) : NONE;
    faults[0] = 0;
    WORKS(TRITONBACKEND_ResponseSend(response, FINAL, failed));
    TRITONSERVER_ErrorDelete(failed);
    /* What goes wrong from here on is in the next answer. */
    FAILS(TRITONBACKEND_ResponseSend(response, FINAL, NONE), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseSend(late, FINAL, NONE), INVALID_ARG);
    FAILS(TRITONBACKEND_ResponseDelete(late), INVALID_ARG);
}

#include "probe_calls.h"

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
    for (uint32_t index = 0; index < count; index++) {
        Request *request = requests[index];
        const char *text;
        probe_request(request);
        probe_response(request, instance);
        probe_calls(instance);
        send(request);
        WORKS(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, 1, 2, 3, 4));
        FAILS(TRITONBACKEND_ModelInstanceReportStatistics(instance, NONE, true, 1, 2, 3, 4), INVALID_ARG);
        WORKS(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, 1, 2, 3, 4));
        WORKS(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
        FAILS(TRITONBACKEND_RequestRelease(request, RELEASE_ALL), INVALID_ARG);
        FAILS(TRITONBACKEND_RequestId(request, &text), INVALID_ARG);
    }
    return NONE;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceReady(Instance *instance) {
    const char *text;
    return TRITONBACKEND_ModelInstanceName(instance, &text);
}

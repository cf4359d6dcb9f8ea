/* What the backends of the tests need of the C interface: declarations only, by our own hand. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Error Error;
typedef struct Message Message;
typedef struct Parameter Parameter;
typedef struct Server Server;
typedef struct Backend Backend;
typedef struct Attribute Attribute;
typedef struct Model Model;
typedef struct Instance Instance;
typedef struct Request Request;
typedef struct Input Input;
typedef struct Response Response;
typedef struct Output Output;
typedef struct Factory Factory;
typedef struct State State;
typedef struct MemoryManager MemoryManager;
typedef struct BufferAttributes BufferAttributes;
typedef struct Statistics Statistics;
typedef struct Trace Trace;
typedef struct Family Family;
typedef struct Metric Metric;
typedef struct MetricArgs MetricArgs;
typedef struct Allocator Allocator;
typedef struct InferenceRequest InferenceRequest;
typedef struct InferenceResponse InferenceResponse;

enum { UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED };
enum { TYPE_INT32 = 8, TYPE_INT64 = 9, TYPE_FP32 = 11, TYPE_BYTES = 13 };
enum { MEMORY_CPU, MEMORY_CPU_PINNED, MEMORY_GPU };
enum { LOG_INFO, LOG_WARN, LOG_ERROR, LOG_VERBOSE };
enum { RELEASE_ALL = 1, RELEASE_RESCHEDULE = 2 };
enum { FINAL = 1 };

typedef Error *AllocateFn(Allocator *, const char *, size_t, uint32_t, int64_t, void *, void **, void **, uint32_t *,
                          int64_t *);
typedef Error *FreeFn(Allocator *, void *, void *, size_t, uint32_t, int64_t);
typedef Error *StartFn(Allocator *, void *);
typedef void ResponseFn(InferenceResponse *, uint32_t, void *);
typedef void ReleaseFn(InferenceRequest *, uint32_t, void *);

Error *TRITONBACKEND_ApiVersion(uint32_t *, uint32_t *);
Error *TRITONSERVER_ApiVersion(uint32_t *, uint32_t *);

Error *TRITONSERVER_ErrorNew(uint32_t, const char *);
void TRITONSERVER_ErrorDelete(Error *);
uint32_t TRITONSERVER_ErrorCode(Error *);
const char *TRITONSERVER_ErrorCodeString(Error *);
const char *TRITONSERVER_ErrorMessage(Error *);
bool TRITONSERVER_LogIsEnabled(uint32_t);
Error *TRITONSERVER_LogMessage(uint32_t, const char *, int, const char *);
const char *TRITONSERVER_DataTypeString(uint32_t);
uint32_t TRITONSERVER_StringToDataType(const char *);
uint32_t TRITONSERVER_DataTypeByteSize(uint32_t);
const char *TRITONSERVER_MemoryTypeString(uint32_t);
const char *TRITONSERVER_ParameterTypeString(uint32_t);
const char *TRITONSERVER_InstanceGroupKindString(uint32_t);
const char *TRITONSERVER_InferenceTraceLevelString(uint32_t);
const char *TRITONSERVER_InferenceTraceActivityString(uint32_t);
Error *TRITONSERVER_MessageNewFromSerializedJson(Message **, const char *, size_t);
Error *TRITONSERVER_MessageDelete(Message *);
Error *TRITONSERVER_MessageSerializeToJson(Message *, const char **, size_t *);
Parameter *TRITONSERVER_ParameterNew(const char *, uint32_t, const void *);
Parameter *TRITONSERVER_ParameterBytesNew(const char *, const void *, uint64_t);
void TRITONSERVER_ParameterDelete(Parameter *);

Error *TRITONBACKEND_BackendName(Backend *, const char **);
Error *TRITONBACKEND_BackendConfig(Backend *, Message **);
Error *TRITONBACKEND_BackendExecutionPolicy(Backend *, uint32_t *);
Error *TRITONBACKEND_BackendSetExecutionPolicy(Backend *, uint32_t);
Error *TRITONBACKEND_BackendArtifacts(Backend *, uint32_t *, const char **);
Error *TRITONBACKEND_BackendMemoryManager(Backend *, MemoryManager **);
Error *TRITONBACKEND_BackendState(Backend *, void **);
Error *TRITONBACKEND_BackendSetState(Backend *, void *);
Error *TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(Attribute *, uint32_t, uint64_t, const uint64_t *, uint64_t);
Error *TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(Attribute *, bool);
Error *TRITONBACKEND_MemoryManagerAllocate(MemoryManager *, void **, uint32_t, int64_t, uint64_t);
Error *TRITONBACKEND_MemoryManagerFree(MemoryManager *, void *, uint32_t, int64_t);

Error *TRITONBACKEND_ModelName(Model *, const char **);
Error *TRITONBACKEND_ModelVersion(Model *, uint64_t *);
Error *TRITONBACKEND_ModelRepository(Model *, uint32_t *, const char **);
Error *TRITONBACKEND_ModelConfig(Model *, uint32_t, Message **);
Error *TRITONBACKEND_ModelAutoCompleteConfig(Model *, bool *);
Error *TRITONBACKEND_ModelSetConfig(Model *, uint32_t, Message *);
Error *TRITONBACKEND_ModelServer(Model *, Server **);
Error *TRITONBACKEND_ModelBackend(Model *, Backend **);
Error *TRITONBACKEND_ModelState(Model *, void **);
Error *TRITONBACKEND_ModelSetState(Model *, void *);
Error *TRITONBACKEND_ModelReportMemoryUsage(Model *, BufferAttributes **, uint32_t);

Error *TRITONBACKEND_ModelInstanceName(Instance *, const char **);
Error *TRITONBACKEND_ModelInstanceKind(Instance *, uint32_t *);
Error *TRITONBACKEND_ModelInstanceDeviceId(Instance *, int32_t *);
Error *TRITONBACKEND_ModelInstanceHostPolicy(Instance *, Message **);
Error *TRITONBACKEND_ModelInstanceIsPassive(Instance *, bool *);
Error *TRITONBACKEND_ModelInstanceProfileCount(Instance *, uint32_t *);
Error *TRITONBACKEND_ModelInstanceProfileName(Instance *, uint32_t, const char **);
Error *TRITONBACKEND_ModelInstanceSecondaryDeviceCount(Instance *, uint32_t *);
Error *TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(Instance *, uint32_t, const char **, int64_t *);
Error *TRITONBACKEND_ModelInstanceModel(Instance *, Model **);
Error *TRITONBACKEND_ModelInstanceState(Instance *, void **);
Error *TRITONBACKEND_ModelInstanceSetState(Instance *, void *);
Error *TRITONBACKEND_ModelInstanceReportMemoryUsage(Instance *, BufferAttributes **, uint32_t);
Error *TRITONBACKEND_ModelInstanceReportStatistics(Instance *, Request *, bool, uint64_t, uint64_t, uint64_t, uint64_t);
Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(Instance *, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(Statistics **);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(Statistics *);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(Statistics *, Instance *);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(Statistics *, Factory *);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(Statistics *, uint64_t);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(Statistics *, uint64_t);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(Statistics *, uint64_t);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetError(Statistics *, Error *);
Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(Statistics *);

Error *TRITONBACKEND_RequestId(Request *, const char **);
Error *TRITONBACKEND_RequestCorrelationId(Request *, uint64_t *);
Error *TRITONBACKEND_RequestCorrelationIdString(Request *, const char **);
Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(Request *, uint64_t *);
Error *TRITONBACKEND_RequestFlags(Request *, uint32_t *);
Error *TRITONBACKEND_RequestIsCancelled(Request *, bool *);
Error *TRITONBACKEND_RequestParameterCount(Request *, uint32_t *);
Error *TRITONBACKEND_RequestParameter(Request *, uint32_t, const char **, uint32_t *, const void **);
Error *TRITONBACKEND_RequestInputCount(Request *, uint32_t *);
Error *TRITONBACKEND_RequestInputName(Request *, uint32_t, const char **);
Error *TRITONBACKEND_RequestInput(Request *, const char *, Input **);
Error *TRITONBACKEND_RequestInputByIndex(Request *, uint32_t, Input **);
Error *TRITONBACKEND_RequestOutputCount(Request *, uint32_t *);
Error *TRITONBACKEND_RequestOutputName(Request *, uint32_t, const char **);
Error *TRITONBACKEND_RequestOutputBufferProperties(Request *, const char *, size_t *, uint32_t *, int64_t *);
Error *TRITONBACKEND_RequestRelease(Request *, uint32_t);
Error *TRITONBACKEND_RequestTrace(Request *, Trace **);
Error *TRITONBACKEND_InputProperties(Input *, const char **, uint32_t *, const int64_t **, uint32_t *, uint64_t *, uint32_t *);
Error *TRITONBACKEND_InputPropertiesForHostPolicy(Input *, const char *, const char **, uint32_t *, const int64_t **,
                                                  uint32_t *, uint64_t *, uint32_t *);
Error *TRITONBACKEND_InputBuffer(Input *, uint32_t, const void **, uint64_t *, uint32_t *, int64_t *);
Error *TRITONBACKEND_InputBufferForHostPolicy(Input *, const char *, uint32_t, const void **, uint64_t *, uint32_t *, int64_t *);
Error *TRITONBACKEND_InputBufferAttributes(Input *, uint32_t, const void **, BufferAttributes **);

Error *TRITONBACKEND_ResponseFactoryNew(Factory **, Request *);
Error *TRITONBACKEND_ResponseFactoryDelete(Factory *);
Error *TRITONBACKEND_ResponseFactorySendFlags(Factory *, uint32_t);
Error *TRITONBACKEND_ResponseFactoryIsCancelled(Factory *, bool *);
Error *TRITONBACKEND_ResponseNew(Response **, Request *);
Error *TRITONBACKEND_ResponseNewFromFactory(Response **, Factory *);
Error *TRITONBACKEND_ResponseDelete(Response *);
Error *TRITONBACKEND_ResponseSetStringParameter(Response *, const char *, const char *);
Error *TRITONBACKEND_ResponseSetIntParameter(Response *, const char *, int64_t);
Error *TRITONBACKEND_ResponseSetBoolParameter(Response *, const char *, bool);
Error *TRITONBACKEND_ResponseSetDoubleParameter(Response *, const char *, double);
Error *TRITONBACKEND_ResponseOutput(Response *, Output **, const char *, uint32_t, const int64_t *, uint32_t);
Error *TRITONBACKEND_ResponseSend(Response *, uint32_t, Error *);
Error *TRITONBACKEND_OutputBuffer(Output *, void **, uint64_t, uint32_t *, int64_t *);
Error *TRITONBACKEND_OutputBufferAttributes(Output *, BufferAttributes **);
Error *TRITONBACKEND_InferenceResponseOutput(Response *, uint32_t, const char **, uint32_t *, const int64_t **, uint64_t *);
Error *TRITONBACKEND_InferenceResponseOutputByName(Response *, const char *, uint32_t *, const int64_t **, uint64_t *);
Error *TRITONBACKEND_StateNew(State **, Request *, const char *, uint32_t, const int64_t *, uint32_t);
Error *TRITONBACKEND_StateUpdate(State *);
Error *TRITONBACKEND_StateBuffer(State *, void **, uint64_t, uint32_t *, int64_t *);
Error *TRITONBACKEND_StateBufferAttributes(State *, BufferAttributes **);

Error *TRITONSERVER_BufferAttributesNew(BufferAttributes **);
Error *TRITONSERVER_BufferAttributesDelete(BufferAttributes *);
Error *TRITONSERVER_BufferAttributesSetMemoryTypeId(BufferAttributes *, int64_t);
Error *TRITONSERVER_BufferAttributesSetMemoryType(BufferAttributes *, uint32_t);
Error *TRITONSERVER_BufferAttributesSetCudaIpcHandle(BufferAttributes *, void *);
Error *TRITONSERVER_BufferAttributesSetByteSize(BufferAttributes *, size_t);
Error *TRITONSERVER_BufferAttributesMemoryTypeId(BufferAttributes *, int64_t *);
Error *TRITONSERVER_BufferAttributesMemoryType(BufferAttributes *, uint32_t *);
Error *TRITONSERVER_BufferAttributesCudaIpcHandle(BufferAttributes *, void **);
Error *TRITONSERVER_BufferAttributesByteSize(BufferAttributes *, size_t *);

Error *TRITONSERVER_InferenceTraceId(Trace *, uint64_t *);
Error *TRITONSERVER_InferenceTraceParentId(Trace *, uint64_t *);
Error *TRITONSERVER_InferenceTraceRequestId(Trace *, const char **);
Error *TRITONSERVER_InferenceTraceContext(Trace *, const char **);
Error *TRITONSERVER_InferenceTraceSpawnChildTrace(Trace *, Trace **);
Error *TRITONSERVER_InferenceTraceDelete(Trace *);
Error *TRITONSERVER_InferenceTraceReportActivity(Trace *, uint64_t, const char *);

Error *TRITONSERVER_MetricFamilyNew(Family **, uint32_t, const char *, const char *);
Error *TRITONSERVER_MetricFamilyDelete(Family *);
Error *TRITONSERVER_GetMetricFamilyKind(Family *, uint32_t *);
Error *TRITONSERVER_MetricArgsNew(MetricArgs **);
Error *TRITONSERVER_MetricArgsSetHistogram(MetricArgs *, const double *, uint64_t);
Error *TRITONSERVER_MetricArgsDelete(MetricArgs *);
Error *TRITONSERVER_MetricNew(Metric **, Family *, const Parameter **, uint64_t);
Error *TRITONSERVER_MetricNewWithArgs(Metric **, Family *, const Parameter **, uint64_t, const MetricArgs *);
Error *TRITONSERVER_MetricDelete(Metric *);
Error *TRITONSERVER_MetricValue(Metric *, double *);
Error *TRITONSERVER_MetricIncrement(Metric *, double);
Error *TRITONSERVER_MetricSet(Metric *, double);
Error *TRITONSERVER_MetricObserve(Metric *, double);
Error *TRITONSERVER_GetMetricKind(Metric *, uint32_t *);

Error *TRITONSERVER_ResponseAllocatorNew(Allocator **, AllocateFn *, FreeFn *, StartFn *);
Error *TRITONSERVER_ResponseAllocatorSetQueryFunction(Allocator *, void *);
Error *TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(Allocator *, void *);
Error *TRITONSERVER_ResponseAllocatorDelete(Allocator *);

Error *TRITONSERVER_InferenceRequestNew(InferenceRequest **, Server *, const char *, int64_t);
Error *TRITONSERVER_InferenceRequestDelete(InferenceRequest *);
Error *TRITONSERVER_InferenceRequestId(InferenceRequest *, const char **);
Error *TRITONSERVER_InferenceRequestSetId(InferenceRequest *, const char *);
Error *TRITONSERVER_InferenceRequestFlags(InferenceRequest *, uint32_t *);
Error *TRITONSERVER_InferenceRequestSetFlags(InferenceRequest *, uint32_t);
Error *TRITONSERVER_InferenceRequestCorrelationId(InferenceRequest *, uint64_t *);
Error *TRITONSERVER_InferenceRequestCorrelationIdString(InferenceRequest *, const char **);
Error *TRITONSERVER_InferenceRequestSetCorrelationId(InferenceRequest *, uint64_t);
Error *TRITONSERVER_InferenceRequestSetCorrelationIdString(InferenceRequest *, const char *);
Error *TRITONSERVER_InferenceRequestCancel(InferenceRequest *);
Error *TRITONSERVER_InferenceRequestIsCancelled(InferenceRequest *, bool *);
Error *TRITONSERVER_InferenceRequestPriority(InferenceRequest *, uint32_t *);
Error *TRITONSERVER_InferenceRequestPriorityUInt64(InferenceRequest *, uint64_t *);
Error *TRITONSERVER_InferenceRequestSetPriority(InferenceRequest *, uint32_t);
Error *TRITONSERVER_InferenceRequestSetPriorityUInt64(InferenceRequest *, uint64_t);
Error *TRITONSERVER_InferenceRequestTimeoutMicroseconds(InferenceRequest *, uint64_t *);
Error *TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(InferenceRequest *, uint64_t);
Error *TRITONSERVER_InferenceRequestAddInput(InferenceRequest *, const char *, uint32_t, const int64_t *, uint64_t);
Error *TRITONSERVER_InferenceRequestRemoveInput(InferenceRequest *, const char *);
Error *TRITONSERVER_InferenceRequestRemoveAllInputs(InferenceRequest *);
Error *TRITONSERVER_InferenceRequestAppendInputData(InferenceRequest *, const char *, const void *, size_t, uint32_t, int64_t);
Error *TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(InferenceRequest *, const char *, const void *, size_t,
                                                                  uint32_t, int64_t, const char *);
Error *TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(InferenceRequest *, const char *, const void *,
                                                                        BufferAttributes *);
Error *TRITONSERVER_InferenceRequestRemoveAllInputData(InferenceRequest *, const char *);
Error *TRITONSERVER_InferenceRequestAddRequestedOutput(InferenceRequest *, const char *);
Error *TRITONSERVER_InferenceRequestRemoveRequestedOutput(InferenceRequest *, const char *);
Error *TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(InferenceRequest *);
Error *TRITONSERVER_InferenceRequestSetReleaseCallback(InferenceRequest *, ReleaseFn *, void *);
Error *TRITONSERVER_InferenceRequestSetResponseCallback(InferenceRequest *, Allocator *, void *, ResponseFn *, void *);
Error *TRITONSERVER_InferenceRequestSetStringParameter(InferenceRequest *, const char *, const char *);
Error *TRITONSERVER_InferenceRequestSetIntParameter(InferenceRequest *, const char *, int64_t);
Error *TRITONSERVER_InferenceRequestSetBoolParameter(InferenceRequest *, const char *, bool);
Error *TRITONSERVER_InferenceRequestSetDoubleParameter(InferenceRequest *, const char *, double);
Error *TRITONSERVER_InferenceResponseDelete(InferenceResponse *);
Error *TRITONSERVER_InferenceResponseError(InferenceResponse *);
Error *TRITONSERVER_InferenceResponseModel(InferenceResponse *, const char **, int64_t *);
Error *TRITONSERVER_InferenceResponseId(InferenceResponse *, const char **);
Error *TRITONSERVER_InferenceResponseParameterCount(InferenceResponse *, uint32_t *);
Error *TRITONSERVER_InferenceResponseParameter(InferenceResponse *, uint32_t, const char **, uint32_t *, const void **);
Error *TRITONSERVER_InferenceResponseOutputCount(InferenceResponse *, uint32_t *);
Error *TRITONSERVER_InferenceResponseOutput(InferenceResponse *, uint32_t, const char **, uint32_t *, const int64_t **,
                                            uint64_t *, const void **, size_t *, uint32_t *, int64_t *, void **);

Error *TRITONSERVER_ServerIsLive(Server *, bool *);
Error *TRITONSERVER_ServerModelIsReady(Server *, const char *, int64_t, bool *);
Error *TRITONSERVER_ServerModelTransactionProperties(Server *, const char *, int64_t, uint32_t *, void **);
Error *TRITONSERVER_ServerLoadModel(Server *, const char *);
Error *TRITONSERVER_ServerLoadModelWithParameters(Server *, const char *, const Parameter **, uint64_t);
Error *TRITONSERVER_ServerUnloadModel(Server *, const char *);
Error *TRITONSERVER_ServerUnloadModelAndDependents(Server *, const char *);
Error *TRITONSERVER_ServerInferAsync(Server *, InferenceRequest *, Trace *);
Error *TRITONSERVER_ServerNew(void **, void *);

/* Returns from the calling function where a call failed. */
#define TRY(call)               \
    do {                        \
        Error *failed = (call); \
        if (failed) {           \
            return failed;      \
        }                       \
    } while (0)

#define EXPORTED __attribute__((visibility("default")))

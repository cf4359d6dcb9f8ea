//! The functions of the headers that no backend known to us calls: options and control of a server
//! that is embedded.
//! Each answers with an error that names it, so that a library which needs one can be opened and
//! gets the error.

use crate::triton::abi::ExportedFunction;
use crate::triton::error::{ErrorHandle, ErrorObject};
use base::error::Error;

/// Defines functions that refuse, for any arguments: the caller cleans those up on both machines.
macro_rules! refusals {
    ($($name:ident)*) => {
        $(
            #[allow(non_snake_case, reason = "the name is C's")]
            extern "C" fn $name() -> ErrorHandle {
                ErrorObject::raise(&Error::unsupported(concat!(stringify!($name), " is not supported by this server")))
            }
        )*

        pub(super) fn exports() -> Vec<ExportedFunction> {
            vec![$(ExportedFunction { name: stringify!($name), address: $name as *const () as usize }),*]
        }
    };
}

refusals! {
    TRITONSERVER_InferenceRequestAddRawInput
    TRITONSERVER_InferenceResponseOutputClassificationLabel
    TRITONSERVER_InferenceTraceModelName
    TRITONSERVER_InferenceTraceModelVersion
    TRITONSERVER_InferenceTraceNew
    TRITONSERVER_InferenceTraceSetContext
    TRITONSERVER_InferenceTraceTensorNew
    TRITONSERVER_MetricsDelete
    TRITONSERVER_MetricsFormatted
    TRITONSERVER_ServerDelete
    TRITONSERVER_ServerIsReady
    TRITONSERVER_ServerMetadata
    TRITONSERVER_ServerMetrics
    TRITONSERVER_ServerModelBatchProperties
    TRITONSERVER_ServerModelConfig
    TRITONSERVER_ServerModelIndex
    TRITONSERVER_ServerModelMetadata
    TRITONSERVER_ServerModelStatistics
    TRITONSERVER_ServerNew
    TRITONSERVER_ServerOptionsAddRateLimiterResource
    TRITONSERVER_ServerOptionsDelete
    TRITONSERVER_ServerOptionsNew
    TRITONSERVER_ServerOptionsSetBackendConfig
    TRITONSERVER_ServerOptionsSetBackendDirectory
    TRITONSERVER_ServerOptionsSetBufferManagerThreadCount
    TRITONSERVER_ServerOptionsSetCacheConfig
    TRITONSERVER_ServerOptionsSetCacheDirectory
    TRITONSERVER_ServerOptionsSetCpuMetrics
    TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize
    TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize
    TRITONSERVER_ServerOptionsSetEnablePeerAccess
    TRITONSERVER_ServerOptionsSetExitOnError
    TRITONSERVER_ServerOptionsSetExitTimeout
    TRITONSERVER_ServerOptionsSetGpuMetrics
    TRITONSERVER_ServerOptionsSetHostPolicy
    TRITONSERVER_ServerOptionsSetLogError
    TRITONSERVER_ServerOptionsSetLogFile
    TRITONSERVER_ServerOptionsSetLogFormat
    TRITONSERVER_ServerOptionsSetLogInfo
    TRITONSERVER_ServerOptionsSetLogVerbose
    TRITONSERVER_ServerOptionsSetLogWarn
    TRITONSERVER_ServerOptionsSetMetrics
    TRITONSERVER_ServerOptionsSetMetricsConfig
    TRITONSERVER_ServerOptionsSetMetricsInterval
    TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability
    TRITONSERVER_ServerOptionsSetModelConfigName
    TRITONSERVER_ServerOptionsSetModelControlMode
    TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit
    TRITONSERVER_ServerOptionsSetModelLoadRetryCount
    TRITONSERVER_ServerOptionsSetModelLoadThreadCount
    TRITONSERVER_ServerOptionsSetModelNamespacing
    TRITONSERVER_ServerOptionsSetModelRepositoryPath
    TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize
    TRITONSERVER_ServerOptionsSetRateLimiterMode
    TRITONSERVER_ServerOptionsSetRepoAgentDirectory
    TRITONSERVER_ServerOptionsSetResponseCacheByteSize
    TRITONSERVER_ServerOptionsSetServerId
    TRITONSERVER_ServerOptionsSetStartupModel
    TRITONSERVER_ServerOptionsSetStrictModelConfig
    TRITONSERVER_ServerOptionsSetStrictReadiness
    TRITONSERVER_ServerPollModelRepository
    TRITONSERVER_ServerRegisterModelRepository
    TRITONSERVER_ServerSetExitTimeout
    TRITONSERVER_ServerStop
    TRITONSERVER_ServerUnregisterModelRepository
}

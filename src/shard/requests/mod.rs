//! From the message of a client, or the call of a model, to the answer: admission, REST, gRPC, streams, inference,
//! ensembles, and the records of requests in log and traces.

pub mod access;
pub mod admission;
mod call_chain;
pub mod compression;
mod control_orders;
pub mod ensemble;
pub mod generate;
pub mod grpc;
mod grpc_call;
pub mod http2_link;
pub mod infer;
pub mod infer_pipeline;
pub mod nested;
pub mod offload;
pub mod predict;
mod refusal_run;
mod regions;
pub mod reply_stream;
mod request_details;
pub mod response_counter;
pub mod rest;
pub mod rest_control;
mod row_shares;
pub mod shard_requests;
pub mod stream;
pub mod tei;
pub mod tei_metrics;
pub mod text;
pub mod text_instances;
pub mod token_charge;
pub mod tracing;

//! The context of a server in tests: generous, without a log, a control thread or anything that
//! costs. A test changes the parts that it tests.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::custom_metrics::CustomMetrics;
use crate::metrics::ShardCells;
use crate::pressure::MemoryBoard;
use crate::runtime::executor::IoPath;
use crate::shard::connections::receive_budget::ProcessReceiveBudget;
use crate::shard::lifecycle::Lifecycle;
use crate::shard::mailbox::ControlSender;
use crate::shard::server_context::{
    ConnectionLimits, ControlLink, KeyOptions, MemoryBudgets, MetricsSources, RequestPolicy, RuntimeOptions,
    ServerContext, ServiceOptions, TlsOptions,
};
use crate::shard::services::control_request::ControlRequests;
use crate::shard::services::trace_settings::TraceLink;

/// Bytes of the receive memory, and of each message.
const SIZE_MAX: usize = 1 << 20;

/// The context of a server with `shards` shards.
pub fn server_context(shards: usize, control: ControlSender) -> ServerContext {
    ServerContext {
        service: ServiceOptions {
            id: "s".to_owned(),
            is_controlled: false,
            strict_readiness: true,
            tells_timing: false,
            tells_load: false,
            follows_triton: false,
            console: Default::default(),
            allows_log_settings: false,
            access_log_per_million: 0,
            #[cfg(feature = "test-hooks")]
            grpc_delays: Default::default(),
            grpc_compression: None,
        },
        policy: RequestPolicy::default(),
        front_ends: Default::default(),
        connection_limits: ConnectionLimits {
            connections_max: 64,
            address_connections_max: 0,
            timeouts: Default::default(),
            http_input_size_max: SIZE_MAX,
            grpc_message_size_max: SIZE_MAX,
            http2_streams_max: 64,
            http2_resets_max: 64,
            http2_control_frames_max: 10_000,
            keep_alive: Default::default(),
        },
        runtime: RuntimeOptions { io: IoPath::Auto, exit_timeout: Duration::ZERO },
        memory: Arc::new(MemoryBudgets {
            receive: Arc::new(ProcessReceiveBudget::new(SIZE_MAX, shards)),
            cache_size: 0,
            board: MemoryBoard::new(usize::MAX, shards),
        }),
        metrics: MetricsSources {
            shard_cells: (0..shards).map(|_| Arc::new(ShardCells::default())).collect(),
            host: Arc::default(),
            load: Default::default(),
            interval: Duration::from_secs(1),
            latencies: Default::default(),
            model_cache: Default::default(),
            gpus: Arc::default(),
            custom: CustomMetrics::new(Vec::new()),
            run_memory: Arc::default(),
            text_batches: None,
        },
        jobs: Default::default(),
        lifecycle: Lifecycle::new(shards),
        control_link: ControlLink {
            control,
            requests: ControlRequests::default(),
            model_wait: None,
            waits: ControlRequests::default(),
            mailboxes: (0..shards).map(|_| Default::default()).collect(),
        },
        shared_memory: None,
        shared_cache: None,
        stores: Vec::new(),
        keys: KeyOptions::default(),
        tls: TlsOptions::default(),
        traces: TraceLink::default(),
        warn: |_| {},
    }
}

//! The bounds that several modules share, each with its reason, and the assertions that tie them together. Others are
//! beside their user. If a flag can move a bound, the constant is the flag's default.

mod foreign;

pub use foreign::*;

use std::time::Duration;

/// Bytes of one request head: enough for large cookies, too little for a flood.
pub const HEAD_SIZE_MAX: usize = 64 * 1024;
/// Fields in one request head: the size of the array that `httparse` fills.
pub const HEAD_FIELDS_MAX: usize = 128;
/// Bytes of a request target.
pub const TARGET_SIZE_MAX: usize = 16 * 1024;
/// Bytes of a request body: Triton's default for `--http-max-input-size`.
pub const BODY_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Bytes allocated for a body because its length was announced; beyond this the buffer grows only as bytes arrive, so
/// an announced length alone costs little memory.
pub const BODY_CLAIM_MAX: usize = 1024 * 1024;
/// Compressed bytes that a shard inflates in one turn, over all requests, before its other tasks
/// run. The worst, blocks of a few bytes with a code table each, take some milliseconds.
pub const INFLATE_INPUT_SLICE: usize = 16 * 1024;
/// Bytes that inflation writes in one turn of a shard: some tenths of a millisecond.
pub const INFLATE_OUTPUT_SLICE: usize = 64 * 1024;
/// Inflated bytes for each compressed one, beyond [`INFLATE_FREE_SIZE`]. DEFLATE has at most 1,032, so that a tensor of
/// zeros is taken; zstd reaches 30,000, and a few kilobytes of a client would cost a shard as much as its largest body.
pub const INFLATE_RATIO_MAX: usize = 1_100;
/// Inflated bytes that are not measured against [`INFLATE_RATIO_MAX`]: regular tensors reach any ratio in zstd, and those
/// of usual models are smaller; it costs a shard some tens of milliseconds, in slices.
pub const INFLATE_FREE_SIZE: usize = 16 * 1024 * 1024;
/// Bytes of a response from which it is compressed: a smaller one fits into one packet with its head in any case.
pub const COMPRESS_SIZE_MIN: usize = 1_024;
/// Responses that one shard compresses at a time; others go out as they are, as compression is only
/// an offer. Each takes a few hundred kilobytes of state.
pub const COMPRESSIONS_MAX: usize = 64;
/// Chunks in one chunked body, as in Triton.
pub const CHUNKS_MAX: usize = 65_536;
/// Bytes of chunk extensions in one body; they are skipped without being parsed.
pub const CHUNK_EXTENSIONS_SIZE_MAX: usize = 4 * 1024;
/// Nesting depth of a JSON document, as in Triton: enough for a request with a nested tensor of the highest rank.
pub const JSON_DEPTH_MAX: usize = 100;
/// Bytes of JSON up to which a shard reads a body by itself: a millisecond at most. Larger ones are read by the pool's
/// threads, which costs some microseconds more.
pub const JSON_INLINE_MAX: usize = 128 * 1024;
/// Bytes of a tensor up to which a shard writes them as JSON by itself: a millisecond at most, as each byte becomes up to
/// five.
pub const JSON_OUTPUT_INLINE_MAX: usize = 32 * 1024;
/// Bytes of typed contents in a gRPC message up to which a shard reads them by itself: a millisecond at most.
pub const TYPED_INLINE_MAX: usize = 128 * 1024;
/// Inputs, or requested outputs, in one request.
pub const REQUEST_TENSORS_MAX: usize = 1_024;
/// Parameters of a request, and of each of its inputs and outputs.
pub const PARAMETERS_MAX: usize = 256;
/// Bytes of a sequence's correlation id if it is a string, as in Triton.
pub const SEQUENCE_ID_SIZE_MAX: usize = 128;
/// Dimensions of a tensor.
pub const RANK_MAX: usize = 32;
/// Bytes of a model's name.
pub const NAME_SIZE_MAX: usize = 255;
/// Rows in one batch, over all its entries: the largest `max_batch_size` that a configuration can state. A request's bytes
/// bound its rows, so nothing is allocated by this number.
pub const BATCH_ROWS_MAX: u32 = i32::MAX.unsigned_abs();
/// Requests in one batch, and slots of an instance for sequences: each takes memory before its data, in the batch and in
/// the message to a process.
pub const BATCH_REQUESTS_MAX: usize = 65_536;
/// Rows of a batch whose memory is allocated before the first request: buffers of a GPU, samples of a warm-up, trials.
pub const BATCH_ROWS_RESERVED_MAX: u32 = 65_536;
/// Requests that may wait for one model version (`--queue-requests-max`).
pub const QUEUE_REQUESTS_MAX: usize = 1_024;
/// Priority levels of one model that each have their own limit on waiting requests: each needs a counter.
pub const PRIORITY_LEVELS_MAX: u64 = 1_024;
/// Time that `--admission` reserves between the end of a run and the deadline, for the wake-ups and the write
/// to the client's socket.
pub const ADMISSION_SLACK: Duration = Duration::from_millis(1);
/// Bytes of inputs that may wait for one model version (`--queue-bytes-max`).
pub const QUEUE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes that a shard leases from the process's receive budget, or returns to it, at a time: the shared counter is
/// touched once in many requests.
pub const RECEIVE_LEASE_SIZE: usize = 1024 * 1024;
/// Share of `--memory-limit`, as a divisor, that lies between two steps of what is given up as memory fills: the first is
/// at 84 percent, so that what requests took is given back many times before requests are refused.
pub const MEMORY_STEP_PART: usize = 25;
/// Bytes between two of these steps at most: of a large machine the models may have nearly all.
pub const MEMORY_STEP_SIZE_MAX: usize = 256 * 1024 * 1024;
/// The time of low use before the next step down: a burst's memory is free by then.
pub const MEMORY_STEP_HOLD: Duration = Duration::from_millis(500);
/// Checks of the memory, if little is left, until what a closed connection held is free: a running
/// batch may still have its tensors. A fifth of a second.
pub const MEMORY_SETTLE_LOOKS: usize = 10;
/// The interval at which the memory of the process is read: a hundredth of a percent of a core. The
/// last check bounds what comes in meanwhile (`MemoryPressure::room`).
pub const MEMORY_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The same if little is left.
pub const MEMORY_LOOK_INTERVAL_NEAR: Duration = Duration::from_millis(20);
/// Bytes that a connection or a stream must hold to be closed for them: many that hold less are no way to free memory.
pub const MEMORY_HEAVY_SIZE: usize = 64 * 1024;
/// Requests of one `ModelStreamInfer` in flight at a time; beyond it the stream is not read.
pub const STREAM_REQUESTS_MAX: usize = 64;
/// Sequences begun by one `ModelStreamInfer` that are remembered, because the end of the stream ends them.
pub const STREAM_SEQUENCES_MAX: usize = 4_096;
/// Bytes of sequence state that one instance keeps (`--sequence-state-bytes-max`).
pub const SEQUENCE_STATE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Nesting depth of ensembles: each level takes stack and memory.
pub const ENSEMBLE_DEPTH_MAX: usize = 8;
/// Responses of decoupled steps in flight inside an ensemble, for one request; beyond it the step is asked to wait.
pub const ENSEMBLE_FRAMES_MAX: usize = 64;
/// Requests of one shard between their last byte read and their answer: each has a ticket.
pub const IN_FLIGHT_MAX: usize = 16_384;
/// Connections of one shard (`--connections-max`); beyond it the one that is idle for longest is closed for a new one.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Connections beyond [`CONNECTIONS_MAX`] of one shard if none is idle: they get all but inference.
/// A probe, a scrape and an operator at a time, and some to spare. The oldest leaves for a new one.
pub const CONNECTIONS_RESERVED: usize = 64;
/// Connections to the metrics port: a few systems that scrape.
pub const METRICS_CONNECTIONS_MAX: usize = 64;
/// Connections of one shard from one client address (`--connections-per-address-max`): any number, since a proxy before
/// the server is one address.
pub const ADDRESS_CONNECTIONS_MAX: usize = 0;
/// Connections of one shard that were told to give their place up and have not closed yet: what they hold is beyond
/// the bound.
pub const CONNECTIONS_LEAVING_MAX: usize = 256;
/// Idle connections that one scan of a shard's connections finds: a scan takes some tens of microseconds, and a flood
/// must not cost one for each connection.
pub const EVICTION_CANDIDATES_MAX: usize = 256;
/// Time in which a shard logs only once that connections are closed or refused for their number.
pub const CONNECTION_NOTICE_PAUSE: Duration = Duration::from_secs(10);
/// Streams of one HTTP/2 connection (`--http2-streams-max`). A stream that the client reset counts until its work has
/// ended: otherwise resets would be a way around the limit.
pub const STREAMS_MAX: u32 = 128;
/// Payload bytes of one HTTP/2 frame: a large tensor needs few frames.
pub const FRAME_SIZE_MAX: u32 = 1024 * 1024;
/// Streams that a client may reset in [`BUDGET_INTERVAL`] (`--http2-resets-max`); each answer that was sent whole gives
/// one back. Opening and resetting a stream costs a client little and a server much.
pub const CLIENT_RESETS_MAX: u32 = 1_000;
/// Frames that carry no content (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown types, tiny DATA) in
/// [`BUDGET_INTERVAL`] (`--http2-control-frames-max`); content, and each message of an answer, give some back.
pub const CONTROL_FRAMES_MAX: u32 = 10_000;
/// Interval after which the budgets of an HTTP/2 connection start again.
pub const BUDGET_INTERVAL: Duration = Duration::from_secs(10);
/// Closed streams that a connection remembers, to tell late frames, which are allowed, from illegal ones.
pub const CLOSED_STREAMS_MAX: usize = 256;
/// Time without a stream, or between requests, after which a connection frees its buffers.
pub const REST_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of one gRPC message (`--grpc-max-message-size`).
pub const GRPC_MESSAGE_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Bytes read from a socket at once into a connection's own buffer.
pub const READ_SIZE: usize = 16 * 1024;
/// Bytes of a reply up to which head and body are copied into one buffer: one small send is cheaper than a vectored
/// one.
pub const COALESCE_SIZE_MAX: usize = 4 * 1024;
/// Alignment of the binary section of a body: enough for any tensor type and SIMD load.
pub const TENSOR_ALIGNMENT: usize = 64;
/// Classes in one row of a classification output.
pub const CLASSES_MAX: usize = 1_000_000;
/// Classes of one row that a GPU selects: twice as many candidates fit into the shared memory that every block may
/// have.
pub const GPU_TOPK_COUNT_MAX: usize = 1024;
/// Run time of the largest request tried at load, up to which a model may run inside the shard: all connections of the
/// shard wait for it.
pub const INLINE_LONGEST_MAX: Duration = Duration::from_millis(1);
/// Time from the first byte of a head, of a frame, or from the start of a connection until it must be complete
/// (`--http-head-timeout`).
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from the accepted connection to the end of its TLS handshake (`--tls-handshake-timeout-secs`): some round trips
/// around the world, and a client that computes slowly.
pub const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// TLS handshakes that one shard has begun and not ended (`--tls-handshakes-max`): each takes some tens of kilobytes, and a
/// shard does about a thousand in a second.
pub const TLS_HANDSHAKES_MAX: usize = 1_000;
/// Bytes of a file with certificates or a key; the bundles of all public authorities have a quarter of it.
pub const TLS_FILE_SIZE_MAX: u64 = 1024 * 1024;
/// API keys in their file, with those that are being replaced. Every request is compared with all of them, in a
/// microsecond at this bound.
pub const API_KEYS_MAX: usize = 1_024;
/// Bytes of the file of API keys: ten times what [`API_KEYS_MAX`] keys need.
pub const API_KEYS_FILE_SIZE_MAX: u64 = 1024 * 1024;
/// Bytes of the name of a client with a key: it stands in a label of each of its metrics.
pub const API_KEY_NAME_SIZE_MAX: usize = 64;
/// Connections to the Unix socket of `--admin-socket`: a few operators and their tools.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
/// Time within which a body must make progress ([`BODY_STEP_SIZE`]) (`--http-body-timeout`).
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time within which the client must take `BODY_STEP_SIZE` bytes of a reply, or the rest of it, from the kernel too
/// (`--http-write-timeout`).
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a client with calls may be silent until it gets a PING (`--grpc-keepalive-time`), as in tritonserver.
pub const KEEP_ALIVE_TIME: Duration = Duration::from_secs(7_200);
/// Time in which it must send something then (`--grpc-keepalive-timeout`), as in tritonserver.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// PINGs to a client between two frames with content (`--grpc-http2-max-pings-without-data`), as in tritonserver.
pub const PINGS_WITHOUT_DATA_MAX: u32 = 2;
/// Time between two PINGs of a client that is sent nothing (`--grpc-http2-min-recv-ping-interval-without-data`), as in
/// tritonserver; by default only without a call.
pub const PING_INTERVAL_MIN: Duration = Duration::from_secs(300);
/// PINGs that may come earlier (`--grpc-http2-max-ping-strikes`), as in tritonserver.
pub const PING_STRIKES_MAX: u32 = 2;
/// Time that a connection may be idle between requests, and one of HTTP/2 without streams (`--http-idle-timeout`).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Time that a connection is still read after a refusal: closing with unread input would send a reset, and the client
/// would lose the refusal.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// A drain closes a connection that has been idle this long since its last answer; a shorter wait could cut off a
/// request that is on its way.
pub const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// The time that the shard which answers while models load waits for its last requests once they
/// are loaded: all its answers are short, and the server is not ready before.
pub const STAND_IN_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that `deuteron health` waits for a server: less than the timeouts of health checks,
/// which are seconds, so that it reports the fault itself.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that an address in use is tried again at the start: the kernel closes the sockets of a
/// killed process some milliseconds after its end, and a supervisor restarts at once.
pub const BIND_RETRY_MAX: Duration = Duration::from_secs(1);
/// Time at the start of a drain in which new connections are still accepted and told that the server is not ready: they
/// could not have known.
pub const DRAIN_LISTEN: Duration = Duration::from_millis(50);
/// Time after [`DRAIN_LISTEN`] for connections in the middle of their handshake: closing the listener would reset them.
pub const DRAIN_HANDSHAKES: Duration = Duration::from_millis(50);
/// Time that the server's end waits for workers after the shards: their answers go nowhere.
pub const WORKERS_END_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a run of a model may take (`--run-timeout-secs`), as on a GPU: no model that answers
/// requests takes a minute on a batch, and one that does would block its queue.
pub const RUN_TIMEOUT: Duration = GPU_RUN_MAX;
/// Time beyond `--exit-timeout-secs` and [`WORKERS_END_TIMEOUT`] until the process is ended whatever its threads do:
/// [`RING_DRAIN_MAX`], and what a busy machine needs for the rest of the drain.
pub const END_MARGIN: Duration = Duration::from_millis(1_500);
/// Time that a drain waits for requests in flight (`--exit-timeout-secs`).
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a configuration file.
pub const CONFIG_SIZE_MAX: usize = 1024 * 1024;
/// Bytes of a Python model's file that are searched for `auto_complete_config`; a longer file is
/// taken to have it. No one writes as much by hand.
pub const PYTHON_FILE_SIZE_MAX: u64 = 4 * 1024 * 1024;
/// Batches that one process of a Python model may run at once (`execute_concurrency`): each has a thread with a stack, and
/// its inputs are in shared memory until it ends.
pub const PYTHON_CONCURRENCY_MAX: usize = 256;
/// Share of the process's memory, as a divisor, that one region between the server and a Python process may take
/// (`--python-memory-bytes-max`): the same for inputs and for outputs, and the batch is in the server's memory as well.
pub const PYTHON_MEMORY_PART: usize = 4;
/// Bytes of the loader's cache (`/etc/ld.so.cache`) that are searched for ONNX Runtime: those of large systems have
/// less than a mebibyte.
pub const LOADER_CACHE_SIZE_MAX: u64 = 16 * 1024 * 1024;
/// Share of the process's memory, as a divisor, for one run of the embedded engine
/// (`--run-memory-bytes-max`): weights and requests are there too, and an estimate is only that.
pub const RUN_MEMORY_PART: usize = 2;
/// Bytes that a pattern of `--http-header-forward-pattern` and `--grpc-header-forward-pattern` may take when it is
/// compiled: those that list all names of a system take a few thousand.
pub const HEADER_PATTERN_SIZE_MAX: usize = 64 * 1024;
/// Bytes of a label file.
pub const LABELS_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Bytes of a model file: the largest that protobuf, and so ONNX, allows.
pub const MODEL_SIZE_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Features of a tree model: each row is copied, and a tensor of one row stays far below any request's bound.
pub const TREE_FEATURES_MAX: usize = 1 << 24;
/// Nodes of a tree model, 12 bytes each: three gigabytes. The largest forests that people train have a hundredth of it.
pub const TREE_NODES_MAX: usize = 1 << 28;
/// Scores of a row of a tree model: one for each class of each target.
pub const TREE_OUTPUTS_MAX: usize = 65_536;
/// Runs of one sample of `model_warmup`: a typing error must not delay the start for days.
pub const WARM_UP_RUNS_MAX: u32 = 10_000;
/// Bytes of one input of a `model_warmup` sample: at most those of a request.
pub const WARM_UP_SIZE_MAX: usize = BODY_SIZE_MAX;
/// Operators of a graph that a backend runs itself: exports of large networks have some thousands.
pub const GRAPH_NODES_MAX: usize = 65_536;
/// Instances of one model version.
pub const INSTANCES_MAX: usize = 256;
/// Cores that a flag may name: as many as a `cpu_set_t` has.
pub const CORES_MAX: usize = 1_024;
/// Panics of one of a shard's own tasks after which the task restarts; one more and the shard's state cannot be
/// trusted, and the server ends.
pub const TASK_PANICS_MAX: u32 = 8;
/// The largest `--model-load-retry-count`: a client that asked for the load waits for all.
pub const LOAD_RETRIES_MAX: usize = 100;
/// Names beneath one model's directory: enough for weights in thousands of files; more fails the model.
pub const MODEL_ENTRIES_MAX: usize = 32_768;
/// Bytes of all model control requests that wait: several of the largest bodies.
pub const ORDERS_SIZE_MAX: usize = 4 * BODY_SIZE_MAX;
/// Requests that wait at a time for models that are loaded on demand (`--model-cache-bytes-max`): as many as a burst over
/// all cold models, whose bodies the receive memory bounds. Beyond it clients get 503.
pub const MODEL_WAITS_MAX: usize = 4_096;
/// The time that a request waits for a load on demand (`--model-cache-wait-ms`): enough for most.
pub const MODEL_WAIT: Duration = Duration::from_secs(10);
/// The size of a version loaded on demand beside its files: its graph, queue, threads and counters.
pub const MODEL_OVERHEAD: u64 = 256 * 1024;
/// Parameters of one model control request: a load may bring the files of a model in them.
pub const ORDER_PARAMETERS_MAX: usize = 1_024;
/// Interval between polls of the repositories in control mode `poll` (`--repository-poll-secs`).
pub const REPOSITORY_POLL: Duration = Duration::from_secs(15);
/// Bytes of one store that are kept on disk (`--model-store-bytes-max`): a prefix too short would else fetch a whole bucket.
pub const STORE_BYTES_MAX: u64 = 256 << 30;
/// Files and ranges of one store that are fetched at a time (`--model-store-connections`): one connection to a store gives a
/// part of a machine's bandwidth, eight most of it.
pub const STORE_CONNECTIONS: usize = 8;
/// The time of a store's silence (`--model-store-timeout-secs`): throttled, it answers in seconds.
pub const STORE_SILENCE_MAX: Duration = Duration::from_secs(20);
/// Attempts in a row that bring nothing, until a fetch or a listing fails: with the pauses between them half a minute.
pub const STORE_ATTEMPTS_MAX: u32 = 6;
/// Loads that run at a time (`--model-load-thread-count`), as in Triton.
pub const MODEL_LOAD_THREADS: usize = 4;

/// Time in which a batch on a GPU must finish (`--gpu-run-secs-max`); past it the instance is given up. No model that
/// answers interactive requests takes a minute.
pub const GPU_RUN_MAX: Duration = Duration::from_secs(60);
/// Largest difference between an output on a GPU and on the CPU in the check at load, relative to the largest value of
/// the output. Sums of FP32 in another order differ by less than a hundredth of this; wrong results differ by more.
pub const GPU_CHECK_TOLERANCE: f32 = 1e-3;
/// The time that a shard waits before it tries again to refuse expired requests of a queue whose
/// lock was taken: forming a batch never holds it longer.
pub const QUEUE_LOOK_PAUSE: Duration = Duration::from_millis(1);
/// Received pieces that may wait for a read of their connection, if the kernel receives by itself:
/// the bound on sending ahead. One entry into the kernel may add 32 (`MULTISHOT_MAX_RETRY`).
pub const RECEIVES_AHEAD_MAX: usize = 4;
/// The time that an ending shard waits for buffers of operations in flight; the rest is leaked.
pub const RING_DRAIN_MAX: Duration = Duration::from_secs(1);
/// Restarts of a model's GPU instances without a successful batch in between. Each restart replaces the context that
/// other models on the device share, so a model whose every batch breaks it must stop.
pub const GPU_RESTARTS_MAX: u32 = 5;
/// Interval between reads of NVML and of `/proc`, as in Triton (`--metrics-interval-ms`).
pub const METRICS_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of device memory that models may allocate on each GPU (`--gpu-memory-bytes-max`): no limit.
pub const GPU_MEMORY_BYTES_MAX: usize = usize::MAX;
/// Bytes of pinned memory (`--pinned-memory-pool-byte-size`), as in Triton.
pub const PINNED_MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Alignment of tensors in the memory of a GPU: the one of `cuMemAlloc`, which cuBLASLt expects.
pub const GPU_BUFFER_ALIGNMENT: usize = 256;

/// Bytes of inputs that one request may have in shared memory (`--client-shm-bytes-max`): they are copied, and more
/// than this would not fit into a queue.
pub const SHARED_MEMORY_BYTES_MAX: usize = QUEUE_BYTES_MAX;
/// Changes of trace settings that wait at a time; beyond it clients get 503.
pub const TRACE_ORDERS_MAX: usize = 256;
/// Bytes of one answer in a cache that servers share. A larger one is computed again sooner than it is moved, and would hold up all
/// others on its connection.
pub const CACHE_VALUE_SIZE_MAX: usize = 16 * 1024 * 1024;
/// Connections to Redis (`--cache-config=redis,pool_size`), as in Triton: one moves tens of thousands of answers a
/// second, since lookups share round trips.
pub const REDIS_CONNECTIONS: usize = 1;
/// The most of them: each has a thread.
pub const REDIS_CONNECTIONS_MAX: usize = 64;
/// The time that a request waits for Redis (`socket_timeout`): far longer than a lookup in a
/// healthy one takes, and shorter than most models run.
pub const REDIS_LOOKUP_TIMEOUT: Duration = Duration::from_millis(50);
/// The time that a connection to Redis may take, with the login (`connect_timeout`).
pub const REDIS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Commands of one exchange: the first reply waits for at most this many to be sent.
pub const REDIS_COMMANDS_MAX: usize = 64;
/// Bytes after which an exchange takes no further commands.
pub const REDIS_COMMANDS_SIZE: usize = 1024 * 1024;
/// The first pause before Redis is connected to again; each failure doubles it.
pub const REDIS_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Threads that call a response cache that is a library: Triton calls one from as many as requests wait for, and a cache over a
/// network needs some at a time.
pub const CACHE_LIBRARY_THREADS: usize = 4;
/// The time that a request waits for such a cache, as for Redis. A thread that is in a call for longer gets no further jobs
/// until it returns.
pub const CACHE_LIBRARY_LOOKUP_TIMEOUT: Duration = REDIS_LOOKUP_TIMEOUT;
/// Bytes of a line of Redis: a status, a size or an error, which quotes at most some of a command.
pub const RESP_LINE_SIZE_MAX: usize = 1_024;
/// Records of traces that wait for the thread that writes them, or for a collector (`bsp_max_queue_size`), as in
/// OpenTelemetry's batch processor: a tenth of a second of a busy server. More are dropped and counted.
pub const TRACE_RECORDS_MAX: u32 = 2_048;
/// Bytes of text that wait for one trace file to be complete; then it is written though it is not.
pub const TRACE_TEXT_SIZE_MAX: usize = 16 * 1024 * 1024;
/// Spans that are sent to a collector at once (`bsp_max_export_batch_size`), as in OpenTelemetry's batch processor.
pub const TRACE_BATCH_SPANS: u32 = 512;
/// The time that spans wait for others before they are sent (`bsp_schedule_delay`), likewise.
pub const TRACE_BATCH_DELAY: Duration = Duration::from_secs(5);
/// The time that the end of the server waits for the last traces to be written.
pub const TRACE_END_TIMEOUT: Duration = Duration::from_secs(3);

/// Shared memory requests, and copies from and to GPUs, that wait at a time.
pub const SHARED_MEMORY_TASKS_MAX: usize = 256;

/// Bytes of a connection's read buffer at first, and all that it keeps while idle: ten thousand idle connections must
/// stay cheap.
pub const INPUT_SIZE_MIN: usize = 2 * 1024;
/// Bytes that a body must bring within `BODY_TIMEOUT`, unless it ends: one byte now and then is no progress.
pub const BODY_STEP_SIZE: usize = 16 * 1024;
/// Calls between models (BLS) that led to one another. A chain this long is a model that calls itself without end: each
/// link holds an instance, its request and its tensors.
pub const NESTED_CALLS_DEPTH_MAX: usize = 16;
/// Calls and orders of models in progress on one shard: half of its tickets, so that models cannot keep clients out.
pub const NESTED_CALLS_MAX: usize = IN_FLIGHT_MAX / 2;
/// Responses to one call of a model that it has not read: beyond it the decoupled model that sends them is asked to
/// wait. As many as a step of an ensemble may have in flight.
pub const NESTED_RESPONSES_UNREAD_MAX: usize = ENSEMBLE_FRAMES_MAX;
/// Time within which a model's own code must say whether it is ready, as in Triton; later counts as no.
pub const MODEL_READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Labels of one metric of a model.
pub const METRIC_LABELS_MAX: usize = 64;
/// Buckets of one histogram of a model: each is a line of every page of metrics.
pub const METRIC_BUCKETS_MAX: usize = 256;
/// Parts of the minute that summaries cover, as many as Prometheus' clients have; the oldest is forgotten at a time.
pub const SUMMARY_SLOTS: usize = 5;
/// Duration of each of these parts, in milliseconds.
pub const SUMMARY_SLOT_MILLIS: u64 = 12_000;
/// Quantiles of `--metrics-config=summary_quantiles=…`: each is a line of every summary of every model.
pub const SUMMARY_QUANTILES_MAX: usize = 32;
/// The time that a shard waits before it reads the metrics of models again, if another thread has
/// their lock: that thread never has it for longer.
pub const METRICS_LOOK_PAUSE: Duration = Duration::from_millis(1);
/// Responses to one request of a decoupled model that have statistics of their own, by index; later ones count with the
/// last, since a request may have millions.
pub const RESPONSE_STATISTICS_MAX: usize = 1_024;

/// Bytes of lines that wait for the log's thread: some 40,000 of the access log: a second in which
/// a disk is busy. Beyond it lines are dropped: the log has no reader, and the server goes on.
pub const LOG_QUEUE_SIZE_MAX: usize = 16 * 1024 * 1024;
/// The cost of a waiting line besides its text, in bytes: a record of the access log and its owner.
pub const LOG_LINE_COST: usize = 256;
/// Bytes of one text in the log; the rest of a longer one is cut. A traceback has far fewer.
pub const LOG_TEXT_SIZE_MAX: usize = 64 * 1024;
/// Bytes of a client's text, such as an id, in a line of the access log.
pub const ACCESS_TEXT_SIZE_MAX: usize = 256;
/// Bytes of lines that are written at once: as many as a pipe holds.
pub const LOG_WRITE_SIZE: usize = 64 * 1024;
/// Lines of the log that the console can show, and bytes of each: 256 KiB at most.
pub const LOG_TAIL_LINES: usize = 256;
/// See [`LOG_TAIL_LINES`].
pub const LOG_TAIL_LINE_SIZE_MAX: usize = 1024;
/// Lines of one place in the source within [`LOG_CAUSE_WINDOW`]: as many as the models that load in
/// it, whose lines are all wanted; a fault that a client can repeat comes a hundred times as often.
pub const LOG_CAUSE_LINES_MAX: u32 = 1_000;
/// The time in which those lines are counted.
pub const LOG_CAUSE_WINDOW: Duration = Duration::from_secs(1);
/// Number of waits of [`LOG_FLUSH_STEP`] for room for a model's output. A log that frees no room in half a second is
/// not read.
pub const LOG_MODEL_STEPS_MAX: u32 = 500;
/// Time between two looks of the waits for the log's thread.
pub const LOG_FLUSH_STEP: Duration = Duration::from_millis(1);

/// Bytes of a region between the server and a Python process at first. Only used parts take memory.
pub const PYTHON_REGION_SIZE: usize = 64 * 1024 * 1024;
/// The time that `finalize` of a Python model may take before its process is ended.
pub const PYTHON_FINALIZE_MAX: Duration = Duration::from_secs(30);
/// The preference for killing a Python process when memory runs out (`oom_score_adj`): half of the
/// scale, so that it goes before the server even if it uses half a machine's memory less.
pub const PYTHON_OOM_SCORE_STEP: i32 = 500;

const _: () = assert!(
    NESTED_CALLS_DEPTH_MAX < NESTED_CALLS_MAX && NESTED_CALLS_MAX < IN_FLIGHT_MAX,
    "the deepest chain fits on one shard, beside clients"
);
const _: () = assert!(MEMORY_STEP_PART > 6, "all steps lie above zero, and what is near the first one does");
const _: () = assert!(TARGET_SIZE_MAX < HEAD_SIZE_MAX, "a target fits into a head");
const _: () =
    assert!(CONNECTIONS_LEAVING_MAX <= EVICTION_CANDIDATES_MAX, "one scan finds as many as may leave at a time");
const _: () = assert!(RING_DRAIN_MAX.as_millis() < END_MARGIN.as_millis(), "a shard that ends by itself may do so");
const _: () = assert!(QUEUE_REQUESTS_MAX <= IN_FLIGHT_MAX, "a shard can fill a queue");
const _: () = assert!(RANK_MAX + 4 <= JSON_DEPTH_MAX, "a nested tensor fits into a document");
const _: () = assert!(BODY_CLAIM_MAX <= BODY_SIZE_MAX, "a claim is a part of a body");
const _: () = assert!(TENSOR_ALIGNMENT.is_power_of_two(), "an alignment is a power of two");
const _: () = assert!(INPUT_SIZE_MIN <= READ_SIZE, "a buffer starts smaller than it grows");
const _: () = assert!(CHUNK_EXTENSIONS_SIZE_MAX * 2 < READ_SIZE, "a chunk line fits into half a buffer");
const _: () = assert!(HEAD_SIZE_MAX <= FRAME_SIZE_MAX as usize, "a field block fits into a frame");

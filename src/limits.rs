//! Every bound of the server, each with its reason, and the assertions that tie them together.
//! Where a flag can move a bound, the constant is the flag's default.

use std::time::Duration;

/// Bytes of one request head: a client with large cookies fits, a flood does not.
pub const HEAD_SIZE_MAX: usize = 64 * 1024;
/// Fields in one request head; `httparse` fills a fixed array of so many.
pub const HEAD_FIELDS_MAX: usize = 128;
/// Bytes of a request target.
pub const TARGET_SIZE_MAX: usize = 16 * 1024;
/// Bytes of a request body; Triton's default of `--http-max-input-size`.
pub const BODY_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Bytes a body may claim before any came: beyond it memory is taken as bytes arrive.
pub const BODY_CLAIM_MAX: usize = 1024 * 1024;
/// Chunks in one chunked body, as Triton bounds them.
pub const CHUNKS_MAX: usize = 65_536;
/// Bytes of chunk extensions in one body, which are skipped unread.
pub const CHUNK_EXTENSIONS_SIZE_MAX: usize = 4 * 1024;
/// Nesting of a JSON document: a tensor of the highest rank, inside its request, fits.
pub const JSON_DEPTH_MAX: usize = 64;
/// Values in one JSON document, those of tensor data not counted: they are kept in memory one by
/// one, and a body is much smaller than what it would become.
pub const JSON_NODES_MAX: usize = 262_144;
/// Inputs, or requested outputs, in one request.
pub const REQUEST_TENSORS_MAX: usize = 1_024;
/// Parameters in one place of a request.
pub const PARAMETERS_MAX: usize = 256;
/// Bytes of a sequence's id where it is a string, as Triton bounds them.
pub const SEQUENCE_ID_SIZE_MAX: usize = 128;
/// Dimensions of a tensor.
pub const RANK_MAX: usize = 32;
/// Bytes of a model's name.
pub const NAME_SIZE_MAX: usize = 255;
/// Rows in one batch, over all its entries: above what any engine gains from.
pub const BATCH_ROWS_MAX: u32 = 65_536;
/// Batch sizes of one model version that are counted apart; larger batches count as of the last.
/// Each takes 32 bytes, in each shard where the model runs inside.
pub const BATCH_SIZES_MAX: usize = 4_096;
/// Requests that may wait for one model version (`--queue-requests-max`).
pub const QUEUE_REQUESTS_MAX: usize = 1_024;
/// Priority levels of one model that each have a bound in requests: each has a count of its own.
pub const PRIORITY_LEVELS_MAX: u64 = 1_024;
/// Priority levels whose waiting rows a forecast counts apart; those past it count together.
pub const FORECAST_LEVELS_MAX: usize = 64;
/// What `--admission=deadline` leaves between the end of a run and the deadline: the way back to
/// the client's socket, with the wake-ups on it.
pub const ADMISSION_SLACK: Duration = Duration::from_millis(1);
/// Bytes of inputs that may wait for one model version (`--queue-bytes-max`).
pub const QUEUE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes of a decoupled model's responses to one request that wait for its client to read.
pub const RESPONSES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Responses of a decoupled model to one request that its client has not read, at which the model is
/// asked to wait.
pub const RESPONSES_UNREAD_MAX: u32 = 1_024;
/// What a response costs beside its bytes.
pub const RESPONSE_COST: usize = 512;
/// Bytes that a shard takes of the memory for requests that come in, or gives back, at a time: the count that
/// all shards share is touched for one request in many.
pub const RECEIVE_LEASE_SIZE: usize = 1024 * 1024;
/// How long a request that is coming in waits for memory before it is refused: others are answered meanwhile, and
/// no two wait for each other forever.
pub const RECEIVE_WAIT_MAX: Duration = Duration::from_secs(1);
/// The part of its memory that a process takes for requests that come in (`--receive-memory-bytes-max`): as much
/// again may wait in queues, be computed with and be on its way out.
pub const RECEIVE_MEMORY_PART: usize = 4;
/// Requests of one `ModelStreamInfer` that are under way at a time: beyond it no more is read.
pub const STREAM_REQUESTS_MAX: usize = 64;
/// Sequences that one `ModelStreamInfer` is remembered to have begun: its end ends them.
pub const STREAM_SEQUENCES_MAX: usize = 4_096;
/// Threads that answer for a built-in decoupled model while its instance goes on.
pub const DECOUPLED_THREADS_MAX: usize = 64;
/// Sequences that may have a slot of one model version: each is some hundreds of bytes.
pub const SEQUENCE_SLOTS_MAX: usize = 1024 * 1024;
/// Bytes of state that one instance keeps for its sequences (`--sequence-state-bytes-max`).
pub const SEQUENCE_STATE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Steps of one ensemble: each may be under way at once, for one request.
pub const ENSEMBLE_STEPS_MAX: usize = 256;
/// Ensembles inside one another: a step inside a step takes stack and memory at each level.
pub const ENSEMBLE_DEPTH_MAX: usize = 8;
/// Answers of decoupled steps to one request of an ensemble that are on their way through it: beyond it
/// the step is asked to wait.
pub const ENSEMBLE_FRAMES_MAX: usize = 64;
/// Requests of one shard between their last byte read and their answer: each has a ticket.
pub const IN_FLIGHT_MAX: usize = 16_384;
/// Connections of one shard; beyond it a new one is closed at once.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Streams of one HTTP/2 connection, those counted whose work goes on after the client reset them
/// (`--http2-streams-max`).
pub const STREAMS_MAX: u32 = 128;
/// Payload of one HTTP/2 frame: few frames for a large tensor.
pub const FRAME_SIZE_MAX: u32 = 1024 * 1024;
/// Bytes of one HTTP/2 stream that may come before more is asked for.
pub const STREAM_WINDOW_SIZE: u32 = 1024 * 1024;
/// The same for all streams of a connection: several large requests at once.
pub const CONNECTION_WINDOW_SIZE: u32 = 8 * 1024 * 1024;
/// CONTINUATION frames of one field block: a block of the largest size in small frames fits.
pub const CONTINUATIONS_MAX: u32 = 32;
/// Streams that a client may reset in [`BUDGET_INTERVAL`]; an answer that it takes pays for one
/// (`--http2-resets-max`). Opening and resetting costs a client little and a server much.
pub const CLIENT_RESETS_MAX: u32 = 1_000;
/// Streams that a client's faults may make us reset in [`BUDGET_INTERVAL`]: the same attack the
/// other way round.
pub const SERVER_RESETS_MAX: u32 = 200;
/// Frames that move nothing (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown ones, DATA of few bytes)
/// in [`BUDGET_INTERVAL`]; content that moves, and every message of an answer, pay for some
/// (`--http2-control-frames-max`).
pub const CONTROL_FRAMES_MAX: u32 = 10_000;
/// The time that the budgets of an HTTP/2 connection are for.
pub const BUDGET_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of a DATA frame below which it moves nothing, unless it is the last of its stream.
pub const DATA_SIZE_LEAST: usize = 256;
/// Bytes of answers to control frames that wait to be sent: beyond it nothing more is read.
pub const CONTROL_BACKLOG_SIZE_MAX: usize = 64 * 1024;
/// Bytes that are framed ahead of the socket: what comes later, from another stream, waits behind
/// no more than this.
pub const TRANSMIT_SIZE_MAX: usize = 256 * 1024;
/// Bytes of one stream that are sent before the next one has its turn.
pub const SEND_QUANTUM: usize = 64 * 1024;
/// Streams of a connection that are remembered after their end, so that what a peer still sent is
/// told from what it must not send.
pub const CLOSED_STREAMS_MAX: usize = 256;
/// After so long without a stream a connection gives back the memory that it worked in.
pub const REST_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of zeros that stand for an optional input that a request left out: it costs no more than a
/// request could bring.
pub const LEFT_OUT_SIZE_MAX: usize = BODY_SIZE_MAX;
/// Bytes of one gRPC message (`--grpc-max-message-size`).
pub const GRPC_MESSAGE_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Bytes read from a socket at once into a connection's own buffer.
pub const READ_SIZE: usize = 16 * 1024;
/// Bytes of a reply up to which head and body are copied together: one small send is cheaper
/// than a vectored one.
pub const COALESCE_SIZE_MAX: usize = 4 * 1024;
/// Where the binary section of a body begins, so that any tensor type and SIMD load is aligned.
pub const TENSOR_ALIGNMENT: usize = 64;
/// Classes a classification may look at.
pub const CLASSES_MAX: usize = 1_000_000;
/// Best classes of one row that a GPU selects: twice as many candidates fit the shared memory that every block may have.
pub const GPU_TOPK_COUNT_MAX: usize = 1024;
/// Rows of one selection on a GPU: sixteen times the largest batch, so that sizes stay far from 32 bits.
pub const GPU_TOPK_ROWS_MAX: usize = 65_536;
/// Run time of one row up to which a model runs inside the shard: a hop to a worker and back
/// costs two thread wake-ups.
pub const INLINE_RUN_MAX: Duration = Duration::from_micros(50);
/// Run time of the largest request that is tried up to which a model may run inside the shard:
/// all its connections wait for it.
pub const INLINE_LONGEST_MAX: Duration = Duration::from_millis(1);
/// A head must be complete so long after its first byte.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A body must move within this time.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// A reply must move `BODY_STEP_SIZE` bytes, or to its end, within this time.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection may be idle so long between requests.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// After a refusal a connection is read on so long, so that the client gets to see it.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// A drain closes a connection that is idle, but not before so long after its last answer: the
/// next request may be on its way.
pub const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// A drain takes connections in for so long, and says to them that the server is not ready: nobody could
/// know that before.
pub const DRAIN_LISTEN: Duration = Duration::from_millis(50);
/// Then it begins no more, and waits so long for those that are being made: closing would reset them.
pub const DRAIN_HANDSHAKES: Duration = Duration::from_millis(50);
/// How long the end waits for workers whose shards have gone: what they still compute has no reader.
pub const WORKERS_END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a drain waits for what is in flight (`--exit-timeout-secs`).
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a `config.pbtxt`.
pub const CONFIG_SIZE_MAX: usize = 1024 * 1024;
/// Bytes of a label file.
pub const LABELS_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Bytes of a model file: the largest that protobuf, and so ONNX, allows.
pub const MODEL_SIZE_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Files beside its own in which an ONNX model keeps tensors: exporters write one, or one for each layer.
pub const EXTERNAL_FILES_MAX: usize = 16_384;
/// Graphs of an ONNX file within one another, as branches of loops are.
pub const GRAPHS_DEEP_MAX: usize = 64;
/// Runs of one sample of `model_warmup`: a slip of the finger must not hold a start up for days.
pub const WARM_UP_RUNS_MAX: u32 = 10_000;
/// Bytes of one input of a sample of `model_warmup`: no more than a request could bring.
pub const WARM_UP_SIZE_MAX: usize = BODY_SIZE_MAX;
/// Operators of a graph that a backend runs by itself: exports of large networks have some thousands.
pub const GRAPH_NODES_MAX: usize = 65_536;
/// Instances of one model version.
pub const INSTANCES_MAX: usize = 256;
/// Cores that a flag may name: as many as a mask of the kernel's interface has.
pub const CORES_MAX: usize = 1_024;
/// Times that one of a shard's own tasks may panic and go on; after that the shard's state is not
/// to be trusted, and the server ends.
pub const TASK_PANICS_MAX: u32 = 8;
/// Versions of one model that are looked at.
pub const VERSIONS_MAX: usize = 1_024;
/// Names in one model repository: each is listed at every look.
pub const MODELS_MAX: usize = 16_384;
/// Names beneath one model's directory: weights in thousands of files fit, a flood fails the model.
pub const MODEL_ENTRIES_MAX: usize = 32_768;
/// Clients' orders to load, unload or list models that wait at a time; beyond it 503.
pub const ORDERS_MAX: usize = 256;
/// Bytes that all of them may bring: several of the largest bodies.
pub const ORDERS_SIZE_MAX: usize = 4 * BODY_SIZE_MAX;
/// Parameters of one order: the files of a model.
pub const ORDER_PARAMETERS_MAX: usize = 1_024;
/// How often the repositories are looked at in the control mode `poll` (`--repository-poll-secs`).
pub const REPOSITORY_POLL: Duration = Duration::from_secs(15);
/// Models that load at a time (`--model-load-thread-count`), as in Triton.
pub const MODEL_LOAD_THREADS: usize = 4;

/// Batches that one instance has on a GPU at a time: one computes while the next is uploaded, or the
/// last comes back.
pub const GPU_FLIGHTS_MAX: usize = 2;
/// A batch on a GPU is done after so long (`--gpu-run-secs-max`), or its instance is given up: no model of a server
/// that answers people takes a minute.
pub const GPU_RUN_MAX: Duration = Duration::from_secs(60);
/// How far an output on a GPU may be from that on the CPU when a model is loaded, as a part of the largest value of the
/// output: sums of FP32 in another order differ by less than a hundredth of it, other numbers by more.
pub const GPU_CHECK_TOLERANCE: f32 = 1e-3;
/// How long a shard that found somebody else at a queue waits before it tries again to refuse what is over there:
/// nobody stays for longer than a batch takes to be formed.
pub const QUEUE_LOOK_PAUSE: Duration = Duration::from_millis(1);
/// How long a shard that ends waits for the kernel to give back the memory of what was under way; what is left then is
/// never freed.
pub const RING_DRAIN_MAX: Duration = Duration::from_secs(1);
/// How often an instance looks at a batch on a GPU of which it hears nothing: a context that broke calls
/// nobody.
pub const GPU_POLL: Duration = Duration::from_millis(1);
/// Times that instances of a model are made anew on a GPU without a batch that succeeds between; a model
/// whose every batch breaks the context must not take the others along again and again.
pub const GPU_RESTARTS_MAX: u32 = 5;
/// How often NVML is asked after the devices, as Triton does (`--metrics-interval-ms`).
pub const GPU_WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of a model's file up to which an engine on a GPU has a session for each stream of an instance, each with weights of its
/// own: a quarter of a gigabyte more is little beside what those cards have that run it.
pub const GPU_COPIED_MODEL_SIZE_MAX: u64 = 256 * 1024 * 1024;
/// Bytes of memory that is taken of each GPU (`--gpu-memory-bytes-max`): all there is.
pub const GPU_MEMORY_BYTES_MAX: usize = usize::MAX;
/// Bytes of pinned memory (`--pinned-memory-pool-byte-size`), as in Triton.
pub const PINNED_MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Where tensors begin in the memory of a GPU: what `cuMemAlloc` gives, and cuBLASLt expects.
pub const GPU_BUFFER_ALIGNMENT: usize = 256;
/// Arguments of a kernel.
pub const GPU_KERNEL_ARGUMENTS_MAX: usize = 16;
/// Kinds of products of which cuBLASLt's choice is kept: some layers at every size of a batch.
pub const GPU_MATMULS_KEPT_MAX: usize = 4_096;

/// Regions of shared memory that clients register: each holds a descriptor, of which a process often has
/// 1,024 by default, and connections want theirs.
pub const SHARED_MEMORY_REGIONS_MAX: usize = 256;
/// Bytes of inputs that one request may have in shared memory (`--client-shm-bytes-max`): a copy of them
/// is made, and what is larger finds no room in a queue.
pub const SHARED_MEMORY_BYTES_MAX: usize = QUEUE_BYTES_MAX;
/// Orders of regions, and copies from and to GPUs, that wait at a time.
pub const SHARED_MEMORY_TASKS_MAX: usize = 256;

/// Nesting of messages in a `config.pbtxt`: more than twice what the deepest field of a model
/// configuration needs.
pub const CONFIG_DEPTH_MAX: usize = 16;
/// Inputs, or outputs, of one model: no request could carry more.
pub const MODEL_TENSORS_MAX: usize = REQUEST_TENSORS_MAX;
/// Bytes of a connection's own buffer at first, and all that it keeps while it is idle: ten
/// thousand idle connections must stay cheap.
pub const INPUT_SIZE_MIN: usize = 2 * 1024;
/// A body moves when it brings so many bytes, or its end, within `BODY_TIMEOUT`: one byte now and
/// then is no progress.
pub const BODY_STEP_SIZE: usize = 16 * 1024;
/// Empty lines before a request line that are skipped (RFC 9112 §2.2): some clients send one
/// after a body.
pub const BLANK_LINES_MAX: usize = 4;
/// Responses of one request to a decoupled model that statistics count apart; those beyond count with
/// the last: a request may have millions.
pub const RESPONSE_STATISTICS_MAX: usize = 1_024;

const _: () = assert!(TARGET_SIZE_MAX < HEAD_SIZE_MAX, "a target fits into a head");
const _: () =
    assert!(RESPONSES_UNREAD_MAX as usize * RESPONSE_COST < RESPONSES_BYTES_MAX, "a model that waits is not cut off");
const _: () = assert!(BATCH_SIZES_MAX > 1_024, "what the histogram of batch sizes tells apart is counted apart");
const _: () = assert!(QUEUE_REQUESTS_MAX <= IN_FLIGHT_MAX, "a shard can fill a queue");
const _: () = assert!(VERSIONS_MAX < MODEL_ENTRIES_MAX, "a model of the most versions can be listed");
const _: () = assert!(RANK_MAX + 4 <= JSON_DEPTH_MAX, "a nested tensor fits into a document");
const _: () = assert!(BODY_CLAIM_MAX <= BODY_SIZE_MAX, "a claim is a part of a body");
const _: () = assert!(TENSOR_ALIGNMENT.is_power_of_two(), "an alignment is a power of two");
const _: () = assert!(INPUT_SIZE_MIN <= READ_SIZE, "a buffer begins below what it grows to");
const _: () = assert!(CHUNK_EXTENSIONS_SIZE_MAX * 2 < READ_SIZE, "the line of a chunk fits into half a buffer");
const _: () = assert!(FRAME_SIZE_MAX <= STREAM_WINDOW_SIZE, "the largest frame fits into a window");
const _: () = assert!(STREAM_WINDOW_SIZE <= CONNECTION_WINDOW_SIZE, "a stream can use its window");
const _: () = assert!(SEND_QUANTUM <= TRANSMIT_SIZE_MAX, "several streams have a turn in what is framed ahead");
const _: () = assert!(HEAD_SIZE_MAX <= FRAME_SIZE_MAX as usize, "a field block fits into a frame");
const _: () = assert!(GPU_BUFFER_ALIGNMENT.is_power_of_two() && GPU_FLIGHTS_MAX >= 2, "an upload beside a computation");
const _: () = assert!(SERVER_RESETS_MAX < CLIENT_RESETS_MAX, "a fault weighs more than a change of mind");

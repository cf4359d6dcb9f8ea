//! The flags that bound what clients may make the server keep: each with its default in
//! `limits.rs`, and the effect beyond it.

use std::path::PathBuf;

use crate::cache;
use crate::table::BOOL;
use crate::value::{parse_timeout, set_count};
use crate::{ResponseCompression, Settings};
use base::policy::AdmissionRule;
use flags::Fallback::{Text, Value};
use flags::Takes::{Many, One};
use flags::{Flag, parse, parse_bool, set, set_one_of};

pub(super) const QUEUE_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["queue-requests-max"],
        takes: One("COUNT"),
        default: Value("1024"),
        help: "Requests that may wait for one model version; beyond it 503",
        apply: |settings, value| set_count(&mut settings.queue_requests_max, value),
    },
    Flag {
        names: &["queue-bytes-max"],
        takes: One("BYTES"),
        default: Value("268435456"),
        help: "Bytes of tensors that may wait for one model version; beyond it 503",
        apply: |settings, value| set_count(&mut settings.queue_bytes_max, value),
    },
    Flag {
        names: &["memory-limit"],
        takes: One("BYTES"),
        default: Text("that of the control group, or of the machine"),
        help: "Memory limit of the process for requests, answers, queues and models; near it, keep-alive ends, then \
               new connections get no inference, then new requests get 503, and last the connections that hold the \
               most are closed",
        apply: |settings, value| set_count(settings.memory_limit.get_or_insert_default(), value),
    },
    Flag {
        names: &["receive-memory-bytes-max"],
        takes: One("BYTES"),
        default: Text("a quarter of --memory-limit"),
        help: "Memory for requests while they are received and decoded, over all connections; beyond it 503",
        apply: |settings, value| set_count(settings.receive_memory_bytes_max.get_or_insert_default(), value),
    },
    Flag {
        names: &["sequence-state-bytes-max"],
        takes: One("BYTES"),
        default: Value("268435456"),
        help: "Bytes of state that one instance keeps for its sequences; beyond it they end",
        apply: |settings, value| set_count(&mut settings.sequence_state_bytes_max, value),
    },
    Flag {
        names: &["run-memory-bytes-max"],
        takes: One("BYTES"),
        default: Text("half of --memory-limit"),
        help: "Memory that one run of the embedded engine may take beside the weights, by an estimate before the run; \
               beyond it 400",
        apply: |settings, value| set_count(settings.run_memory_bytes_max.get_or_insert_default(), value),
    },
    Flag {
        names: &["python-memory-bytes-max"],
        takes: One("BYTES"),
        default: Text("a quarter of --memory-limit"),
        help: "Bytes of the largest region that an instance of a Python model shares with its process, for inputs and \
               for outputs each; a batch that needs more fails",
        apply: |settings, value| set_count(settings.python_memory_bytes_max.get_or_insert_default(), value),
    },
    Flag {
        names: &["admission"],
        takes: One("none|queue|deadline"),
        default: Value("queue"),
        help: "Refuse requests early, by measured run times. queue: those that would time out in the queue; deadline: \
               those that would be answered after their deadline; none: no request",
        apply: |settings, value| {
            let rules =
                [("none", AdmissionRule::None), ("queue", AdmissionRule::Queue), ("deadline", AdmissionRule::Deadline)];
            set_one_of(&mut settings.admission, value, &rules)
        },
    },
    Flag {
        names: &["cache-config"],
        takes: Many("CACHE,SETTING=VALUE_OR_SECRET"),
        default: Value("local,size=0"),
        help: "The response cache, for models with response_cache { enable: true }: local,size=BYTES in this process, \
               each shard with its share; or one Redis for many servers, by redis,host=HOST and redis,port=PORT, with \
               user, password, db, connect_timeout, socket_timeout (how long a request waits for Redis at most), \
               wait_timeout, all in milliseconds, and pool_size; or NAME,SETTING=VALUE for a library of --cache-directory",
        apply: |settings, value| cache::read(&mut settings.cache, value),
    },
    Flag {
        names: &["cache-directory"],
        takes: One("DIRECTORY"),
        default: Value("/opt/tritonserver/caches"),
        help: "Where response caches are: the cache NAME is NAME/libtritoncache_NAME.so of it, a shared library written for \
               Triton; without --allow-agents none is opened",
        apply: |settings, value| {
            settings.cache_directory = PathBuf::from(value);
            Ok(())
        },
    },
    Flag {
        names: &["response-cache-byte-size"],
        takes: One("BYTES"),
        default: Text("that of --cache-config"),
        help: "Deprecated: the same as --cache-config=local,size=BYTES",
        apply: |settings, value| {
            settings.warnings.push(
                "--response-cache-byte-size is deprecated; --cache-config=local,size=BYTES says the same".to_owned(),
            );
            set(&mut settings.cache.size, parse(value))
        },
    },
    Flag {
        names: &["allow-client-shm"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Let clients pass tensors in shared memory, any that this process may open: a file of /dev/shm, or \
               memory of a GPU",
        apply: |settings, value| set(&mut settings.client_shm.is_allowed, parse_bool(value)),
    },
    Flag {
        names: &["client-shm-bytes-max"],
        takes: One("BYTES"),
        default: Value("268435456"),
        help: "Bytes of inputs that one request may have in shared memory; beyond it 413",
        apply: |settings, value| set_count(&mut settings.client_shm.bytes_max, value),
    },
];

const COMPRESSIONS: &[(&str, ResponseCompression)] = &[
    ("none", ResponseCompression::None),
    ("low", ResponseCompression::Low),
    ("medium", ResponseCompression::Medium),
    ("high", ResponseCompression::High),
];

pub(super) const CONNECTION_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["http-max-input-size"],
        takes: One("BYTES"),
        default: Value("67108864"),
        help: "Largest HTTP body",
        apply: |settings, value| set_count(&mut settings.http_input_size_max, value),
    },
    Flag {
        names: &["grpc-max-message-size"],
        takes: One("BYTES"),
        default: Text("67108864; with --compat=triton 2147483647"),
        help: "Largest gRPC message",
        apply: |settings, value| set_count(settings.grpc_message_size_max.get_or_insert_default(), value),
    },
    Flag {
        names: &["grpc-infer-response-compression-level"],
        takes: One("none|low|medium|high"),
        default: Value("none"),
        help: "Compress the responses to inferences for gRPC clients that take them so (gzip, deflate)",
        apply: |settings, value| set_one_of(&mut settings.grpc_compression, value, COMPRESSIONS),
    },
    Flag {
        names: &["connections-max"],
        takes: One("COUNT"),
        default: Value("10000"),
        help: "Connections of one shard; beyond it a new one replaces the one that has been idle longest, if any is \
               idle",
        apply: |settings, value| set_count(&mut settings.connections.count_max, value),
    },
    Flag {
        names: &["connections-per-address-max"],
        takes: One("COUNT"),
        default: Value("0"),
        help: "Connections of one shard from one client address, for IPv6 from one network of 64 bits; beyond it new \
               ones are closed; 0 for no limit",
        apply: |settings, value| set(&mut settings.connections.address_count_max, parse(value)),
    },
    Flag {
        names: &["http-head-timeout"],
        takes: One("SECONDS"),
        default: Value("10"),
        help: "Time for the head of a request from its first byte, for a frame of HTTP/2, and until a new connection has \
               begun one; beyond it 408 or GOAWAY",
        apply: |settings, value| set(&mut settings.connections.timeouts.head, parse_timeout(value)),
    },
    Flag {
        names: &["http-body-timeout"],
        takes: One("SECONDS"),
        default: Value("30"),
        help: "Time in which a body must bring 16 KiB, or its end; beyond it 408",
        apply: |settings, value| set(&mut settings.connections.timeouts.body, parse_timeout(value)),
    },
    Flag {
        names: &["http-write-timeout"],
        takes: One("SECONDS"),
        default: Value("30"),
        help: "Time in which a client must take 16 KiB of an answer, or the rest of it; beyond it the connection is reset",
        apply: |settings, value| set(&mut settings.connections.timeouts.write, parse_timeout(value)),
    },
    Flag {
        names: &["http-idle-timeout"],
        takes: One("SECONDS"),
        default: Value("75"),
        help: "Time that a connection may be idle between requests, or without streams; then it is closed, for HTTP/2 \
               by GOAWAY",
        apply: |settings, value| set(&mut settings.connections.timeouts.idle, parse_timeout(value)),
    },
    Flag {
        names: &["http2-streams-max"],
        takes: One("COUNT"),
        default: Value("128"),
        help: "Streams of one HTTP/2 connection at a time; beyond it new ones are refused",
        apply: |settings, value| set_count(&mut settings.http2_streams_max, value),
    },
    Flag {
        names: &["http2-resets-max"],
        takes: One("COUNT"),
        default: Value("1000"),
        help: "Streams that an HTTP/2 client may reset in 10 s, one more for each answer it takes; beyond it GOAWAY",
        apply: |settings, value| set_count(&mut settings.http2_resets_max, value),
    },
    Flag {
        names: &["http2-control-frames-max"],
        takes: One("COUNT"),
        default: Value("10000"),
        help: "Frames an HTTP/2 client may send in 10 s that move nothing; beyond it GOAWAY",
        apply: |settings, value| set_count(&mut settings.http2_control_frames_max, value),
    },
];

//! `deuteron bench`: a load generator for servers of the Open Inference Protocol v2, over HTTP/1.1
//! and gRPC. It shares formats with the server and nothing else: it may be pointed at any other.
//!
//! What decides is pure and told the time: [`schedule`], [`sequence`], [`stability`], [`search`],
//! [`comparison`], [`input`], [`request`], the exchanges and everything that prints. What touches
//! sockets, files, threads and the clock is [`lane`], [`link`], [`socket`], [`control`],
//! [`measure`], [`usage`] and [`mod@run`].
//!
//! Latency counts from the first byte sent to the last byte read, in an open loop from when the
//! request was due, so that a server which stalls is charged for every request that it kept from
//! being sent (no coordinated omission).

pub mod call;
pub mod clock;
pub mod comparison;
pub mod control;
pub mod description;
pub mod exchange;
pub mod failure;
pub mod flags;
pub mod http1;
pub mod http2;
pub mod input;
pub mod input_file;
pub mod link;
pub mod load_thread;
pub mod machine;
pub mod measure;
pub mod plot;
pub mod random;
pub mod report;
pub mod request;
pub mod run;
pub mod schedule;
pub mod search;
pub mod sequence;
pub mod settings;
pub mod socket;
pub mod stability;
pub mod statistics;
pub mod table;
pub mod target;
pub mod usage;
pub mod window;

pub use run::run;
pub use settings::BenchSettings;

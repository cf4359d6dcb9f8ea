//! `deuteron bench`: a load generator for servers of the Open Inference Protocol v2, over HTTP/1.1 and gRPC. It shares
//! only the formats with our server, and works with any server of the protocol.
//!
//! Everything that decides, encodes or prints is pure and gets the time as an argument: [`schedule`], [`sequence`],
//! [`stability`], [`search`], [`comparison`], [`input`], [`request`], the implementations of [`exchange`] and the reports.
//! Sockets, files, threads and the clock are used only in [`load_thread`], [`client_connection`], [`socket`], [`control`],
//! [`measure`], [`trust`], [`usage`] and [`mod@run`].
//!
//! Latency is the time from the first byte sent to the last byte read. In an open loop it counts from when the request was
//! due, so that a server that stalls is charged for all requests that it delayed (no coordinated omission).

pub mod call;
pub mod client_connection;
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
pub mod load_thread;
pub mod machine;
pub mod measure;
pub mod new_exchange;
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
pub mod tls;
pub mod tls_socket;
pub mod trust;
pub mod usage;
pub mod window;

pub use run::run;
pub use settings::BenchSettings;

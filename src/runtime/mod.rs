//! All I/O of the network: what runs a shard's tasks, the sockets that they await, the clock that they are handed, and
//! the `unsafe` that this takes. The only room that names io_uring, epoll and glommio. A thread has one executor; nothing
//! here knows a protocol, a model or a request.

pub mod clock;
pub mod executor;
pub mod ring;
pub mod socket;

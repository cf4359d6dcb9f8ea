//! All network I/O: the executor of a shard's tasks, the sockets that they await, the clock, and the `unsafe` that this
//! needs. The only room that names io_uring, epoll and glommio. A thread has one executor. Nothing here knows a
//! protocol, a model or a request.

pub mod claim;
pub mod clock;
pub mod executor;
pub mod ring;
#[cfg(test)]
pub mod simulation;
pub mod socket;

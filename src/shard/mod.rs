//! The shards: the only place with sockets, clocks and glommio.

pub mod clock;
pub mod connections;
pub mod feed;
pub mod inbox;
pub mod io;
pub mod ticket;

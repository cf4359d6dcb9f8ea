//! The shards: the only place with sockets, clocks and glommio.

pub mod body;

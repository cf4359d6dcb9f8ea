//! protobuf.

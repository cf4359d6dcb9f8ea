//! http1.

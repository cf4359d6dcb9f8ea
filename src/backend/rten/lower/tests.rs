//! Tests of what becomes of graphs.

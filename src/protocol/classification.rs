//! classification.

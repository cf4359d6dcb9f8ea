//! route.

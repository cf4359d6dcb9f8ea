//! Forming batches: a pure state machine.

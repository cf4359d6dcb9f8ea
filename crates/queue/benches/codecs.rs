//! Times the pieces of a request's way, each alone: formats, messages, queues. In one thread, in memory, without
//! sockets; the table is in `cases/`.
//!
//! `cargo bench --bench codecs [-- NAME]`.

mod cases;

use std::time::Duration;

use criterion::{Criterion, Throughput};

use cases::CASES;

fn main() {
    let criterion =
        Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let mut criterion = criterion.sample_size(20).configure_from_args();
    for case in CASES {
        let mut group = criterion.benchmark_group(case.layer);
        let (mut work, size) = (case.make)();
        if size > 0 {
            group.throughput(Throughput::Bytes(size as u64));
        }
        group.bench_function(case.name, |bencher| bencher.iter(&mut work));
        group.finish();
    }
    criterion.final_summary();
}

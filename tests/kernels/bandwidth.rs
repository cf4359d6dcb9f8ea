//! What the kernels make of a GPU's memory: bytes that must move over the time they take, beside a copy by the driver,
//! and beside `torch.topk` where Python has PyTorch. Inputs take turns, so that none is in the cache.

use std::process::Command;

use deuteron::backend::gpu::driver::DevicePointer;
use deuteron::backend::kernel::reshape::{CopyPart, copy_plan};
use deuteron::backend::kernel::topk::{Index, TopK};
use deuteron::backend::kernel::{Plan, Role};
use deuteron::tensor::Datatype;

use super::case::Random;
use super::device::Device;

/// Rows, classes, count.
const SELECTIONS: [(usize, usize, usize); 6] =
    [(4096, 1000, 5), (4096, 1000, 100), (64, 1_000_000, 5), (64, 1_000_000, 1024), (1, 1_000_000, 5), (64, 1000, 5)];

/// Bytes that inputs of one shape take together: several times a cache.
const SIZE: usize = 1 << 29;
const RUNS: usize = 40;
const ROUNDS: usize = 5;

/// One line of the table.
struct Line {
    work: String,
    /// Bytes read and written that no implementation can save.
    size: usize,
    /// Microseconds.
    time: f64,
}

/// Measures and prints.
pub fn print(device: &Device) {
    let properties = device.properties();
    println!("{}, {} multiprocessors", properties.name, properties.multiprocessors);
    let input = device.upload(&Random(41).bytes(SIZE));
    let output = device.alloc(SIZE);
    let copy = copied(device, input, output);
    let copied_per_second = copy.size as f64 / copy.time;
    let theirs = torch();
    println!("| work | µs | GB/s | of a copy | torch.topk µs | ratio |\n|---|---|---|---|---|---|");
    let mut lines = vec![(copy, None)];
    lines.push((gathered(device, input, output), None));
    for (place, shape) in SELECTIONS.into_iter().enumerate() {
        lines.push((selected(device, input, output, shape), theirs.get(place).copied()));
    }
    for (line, theirs) in lines {
        let speed = line.size as f64 / line.time;
        let (theirs, ratio) = theirs
            .map_or((String::new(), String::new()), |time| (format!("{time:.1}"), format!("{:.1}", time / line.time)));
        let (gigabytes, share) = (speed / 1000.0, speed / copied_per_second);
        println!("| {} | {:.1} | {gigabytes:.0} | {:.0} % | {theirs} | {ratio} |", line.work, line.time, share * 100.0);
    }
}

/// Microseconds of one run: the best round of some, each of many runs behind one another.
fn time(device: &Device, run: impl Fn(usize)) -> f64 {
    let round = || device.timed(|| (0..RUNS).for_each(&run)).as_secs_f64() * 1e6 / RUNS as f64;
    // The first loads code.
    round();
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn copied(device: &Device, input: DevicePointer, output: DevicePointer) -> Line {
    let size = SIZE / 2;
    let stream = device.stream().0 as cudarc::driver::sys::CUstream;
    let time = time(device, |_| {
        // SAFETY: both buffers are larger, and only this stream uses them; the context is current since it was asked
        // for an event.
        let code = unsafe { cudarc::driver::sys::cuMemcpyDtoDAsync_v2(output, input, size, stream) };
        assert_eq!(code, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
    });
    Line { work: "copy of 256 MiB by the driver".to_owned(), size: 2 * size, time }
}

fn gathered(device: &Device, input: DevicePointer, output: DevicePointer) -> Line {
    const REQUESTS: usize = 256;
    const REQUEST_SIZE: usize = 4096;
    let turns = SIZE / 2 / (REQUESTS * REQUEST_SIZE);
    // Requests lie apart, as their bodies do.
    let plans: Vec<(Plan, DevicePointer)> = (0..turns.min(RUNS))
        .map(|turn| {
            let part = |request: usize| CopyPart {
                source: ((turn * REQUESTS + request) * 2 * REQUEST_SIZE) as u64,
                target: ((turn * REQUESTS + request) * REQUEST_SIZE) as u64,
                size: REQUEST_SIZE as u64,
            };
            let parts: Vec<CopyPart> = (0..REQUESTS).map(part).collect();
            (copy_plan(&parts).expect("the parts are planned"), device.upload(bytemuck::cast_slice(&parts)))
        })
        .collect();
    let time = time(device, |run| {
        let (plan, table) = &plans[run % plans.len()];
        device.enqueue(plan, |role| match role {
            Role::Parts => *table,
            Role::Input => input,
            _ => output,
        });
    });
    Line { work: "gather of 256 x 4 KiB".to_owned(), size: 2 * REQUESTS * REQUEST_SIZE, time }
}

fn selected(
    device: &Device,
    input: DevicePointer,
    output: DevicePointer,
    (rows, classes, count): (usize, usize, usize),
) -> Line {
    let request = TopK { datatype: Datatype::Fp32, rows, classes, count, has_values: true, index: Index::I64 };
    let plan = request.plan(device.properties().multiprocessors).expect("the shape is planned");
    let size = rows * classes * 4;
    let turns = (SIZE / size).max(1);
    let (values, scratch) = (rows * count * 4, plan.scratch_size);
    assert!(values + scratch + rows * count * 8 < SIZE);
    let align = |size: usize| size.next_multiple_of(256) as u64;
    let time = time(device, |run| {
        device.enqueue(&plan, |role| match role {
            Role::Input => input + (run % turns * size) as u64,
            Role::Output => output,
            Role::Indices => output + align(values),
            _ => output + align(values) + align(rows * count * 8),
        });
    });
    let strategy = request.strategy(device.properties().multiprocessors);
    Line { work: format!("top {count} of {rows} x {classes} FP32, {strategy:?}"), size, time }
}

/// Microseconds of `torch.topk` for each selection; none where there is no PyTorch that sees the GPU.
fn torch() -> Vec<f64> {
    let shapes: Vec<String> = SELECTIONS.iter().map(|shape| format!("{shape:?}")).collect();
    let program = format!(
        "
import torch
for rows, classes, count in [{}]:
    turns = max({SIZE} // (rows * classes * 4), 1)
    inputs = torch.randn(turns, rows, classes, device='cuda')
    best = 1e9
    for _ in range({ROUNDS} + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for run in range({RUNS}):
            torch.topk(inputs[run % turns], count)
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) * 1000 / {RUNS})
    print(best)
",
        shapes.join(", ")
    );
    let output = Command::new("python3").args(["-c", &program]).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.parse().ok()).collect()
        }
        _ => {
            println!("no PyTorch with this GPU: nothing beside torch.topk");
            Vec::new()
        }
    }
}

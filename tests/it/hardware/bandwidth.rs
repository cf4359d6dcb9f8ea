//! Memory bandwidth of the kernels: bytes that must move over the time they take, beside a copy by the driver, and
//! beside `torch.topk` if Python has PyTorch. Inputs take turns, so that the cache holds no input. And the part of a
//! copy that is hidden behind kernels of another stream.

use std::process::Command;

use deuteron::backend::gpu::driver::{DevicePointer, GpuContext, GpuEvent, GpuStream};
use deuteron::backend::kernel::pointwise::{Activation, activation_plan};
use deuteron::backend::kernel::reshape::{CopyPart, copy_plan};
use deuteron::backend::kernel::topk::{TopK, TopKIndex};
use deuteron::backend::kernel::{BufferRole, LaunchPlan};
use deuteron::tensor::Datatype;

use super::Scale;
use crate::kernels::case::Random;
use crate::kernels::device::Device;

/// Rows, classes, count.
const SELECTIONS: [(usize, usize, usize); 6] =
    [(4096, 1000, 5), (4096, 1000, 100), (64, 1_000_000, 5), (64, 1_000_000, 1024), (1, 1_000_000, 5), (64, 1000, 5)];
/// The same ways through the kernels on the software GPU.
const SMALL: [(usize, usize, usize); 6] =
    [(64, 1000, 5), (8, 1000, 100), (2, 60_000, 5), (1, 60_000, 1024), (1, 60_000, 5), (4, 1000, 5)];

/// One line of the table.
struct Line {
    work: String,
    /// Bytes read and written that no implementation can save.
    size: usize,
    /// Microseconds.
    time: f64,
}

/// Measures and prints.
pub fn print(device: &Device, scale: &Scale) {
    let properties = device.properties();
    println!("{}, {} multiprocessors{}", properties.name, properties.multiprocessors, scale.note());
    let bench = Bench { device, scale };
    let input = device.upload(&Random(41).bytes(scale.size));
    let output = device.alloc(scale.size);
    let copy = bench.copied(input, output);
    let copied_per_second = copy.size as f64 / copy.time;
    let selections = if scale.is_software { SMALL } else { SELECTIONS };
    let theirs = bench.torch(&selections);
    println!("| work | µs | GB/s | of a copy | torch.topk µs | ratio |\n|---|---|---|---|---|---|");
    let mut lines = vec![(copy, None)];
    lines.push((bench.gathered(input, output), None));
    for (place, shape) in selections.into_iter().enumerate() {
        lines.push((bench.selected(input, output, shape), theirs.get(place).copied()));
    }
    for (line, theirs) in lines {
        let speed = line.size as f64 / line.time;
        let (theirs, ratio) = theirs
            .map_or((String::new(), String::new()), |time| (format!("{time:.1}"), format!("{:.1}", time / line.time)));
        let (gigabytes, share) = (speed / 1000.0, speed / copied_per_second);
        println!("| {} | {:.1} | {gigabytes:.0} | {:.0} % | {theirs} | {ratio} |", line.work, line.time, share * 100.0);
    }
    bench.overlap(input);
}

/// A device, and the amount of work on it.
struct Bench<'a> {
    device: &'a Device,
    scale: &'a Scale,
}

impl Bench<'_> {
    /// Microseconds of one run: the best round of some, each of many runs behind one another.
    fn time(&self, run: impl Fn(usize)) -> f64 {
        let Scale { runs, repetitions, .. } = *self.scale;
        let round = || self.device.timed(|| (0..runs).for_each(&run)).as_secs_f64() * 1e6 / runs as f64;
        // The first loads code.
        round();
        (0..repetitions).map(|_| round()).fold(f64::INFINITY, f64::min)
    }

    fn copied(&self, input: DevicePointer, output: DevicePointer) -> Line {
        let size = self.scale.size / 2;
        let stream = self.device.stream().as_raw() as cudarc::driver::sys::CUstream;
        let time = self.time(|_| {
            // SAFETY: both buffers are larger, and only this stream uses them; the context is current since it was
            // asked for an event.
            let code = unsafe { cudarc::driver::sys::cuMemcpyDtoDAsync_v2(output, input, size, stream) };
            assert_eq!(code, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
        });
        Line { work: format!("copy of {} MiB by the driver", size >> 20), size: 2 * size, time }
    }

    fn gathered(&self, input: DevicePointer, output: DevicePointer) -> Line {
        const REQUESTS: usize = 256;
        const REQUEST_SIZE: usize = 4096;
        let turns = (self.scale.size / 2 / (REQUESTS * REQUEST_SIZE)).max(1);
        // Requests lie apart, as their bodies do in the server.
        let plans: Vec<(LaunchPlan, DevicePointer)> = (0..turns.min(self.scale.runs))
            .map(|turn| {
                let part = |request: usize| CopyPart {
                    source: ((turn * REQUESTS + request) * 2 * REQUEST_SIZE) as u64,
                    target: ((turn * REQUESTS + request) * REQUEST_SIZE) as u64,
                    size: REQUEST_SIZE as u64,
                };
                let parts: Vec<CopyPart> = (0..REQUESTS).map(part).collect();
                let table = self.device.upload(bytemuck::cast_slice(&parts));
                (copy_plan(&parts).expect("the parts are planned"), table)
            })
            .collect();
        let time = self.time(|run| {
            let (plan, table) = &plans[run % plans.len()];
            self.device.enqueue(plan, |role| match role {
                BufferRole::Parts => *table,
                BufferRole::Input => input,
                _ => output,
            });
        });
        Line { work: "gather of 256 x 4 KiB".to_owned(), size: 2 * REQUESTS * REQUEST_SIZE, time }
    }

    fn selected(
        &self,
        input: DevicePointer,
        output: DevicePointer,
        (rows, classes, count): (usize, usize, usize),
    ) -> Line {
        let request = TopK { datatype: Datatype::Fp32, rows, classes, count, has_values: true, index: TopKIndex::I64 };
        let multiprocessors = self.device.properties().multiprocessors;
        let plan = request.plan(multiprocessors).expect("the shape is planned");
        let size = rows * classes * 4;
        let turns = (self.scale.size / size).max(1);
        let (values, scratch) = (rows * count * 4, plan.scratch_size);
        assert!(values + scratch + rows * count * 8 < self.scale.size && size <= self.scale.size);
        let align = |size: usize| size.next_multiple_of(256) as u64;
        let time = self.time(|run| {
            self.device.enqueue(&plan, |role| match role {
                BufferRole::Input => input + (run % turns * size) as u64,
                BufferRole::Output => output,
                BufferRole::Indices => output + align(values),
                _ => output + align(values) + align(rows * count * 8),
            });
        });
        let strategy = request.strategy(multiprocessors);
        Line { work: format!("top {count} of {rows} x {classes} FP32, {strategy:?}"), size, time }
    }

    /// A copy from the host on one stream and kernels that take as long on another: alone, and together.
    fn overlap(&self, memory: DevicePointer) {
        let context = self.device.context();
        let size = self.scale.size / 8;
        let pinned = context.alloc_pinned(size).expect("the host has memory");
        // SAFETY: `size` bytes were just taken, and no stream knows them.
        unsafe { pinned.write_bytes(0, size) };
        let copies = Side::new(context);
        let kernels = Side::new(context);
        // Within the cache: the kernels need only the multiprocessors, which copies do not use.
        let count = if self.scale.is_software { 1 << 10 } else { 1 << 20 };
        let plan = activation_plan(count, Activation::Gelu, Datatype::Fp32).expect("it is planned");
        let behind = memory + size as u64;
        let copy = || {
            // SAFETY: the memory is pinned, of that size, and waited for before it is given back.
            unsafe { context.copy_in(copies.stream, pinned.as_ptr(), memory, size) }.expect("it is enqueued");
        };
        let run = |times: usize| {
            (0..times).for_each(|_| self.device.enqueue_on(kernels.stream, &plan, |_| behind));
        };
        copies.timed(self.device, copy);
        kernels.timed(self.device, || run(1));
        let copied = copies.timed(self.device, copy);
        let one = kernels.timed(self.device, || run(10)) / 10.0;
        let times = ((copied / one) as usize).clamp(1, 100_000);
        let computed = kernels.timed(self.device, || run(times));
        [&copies, &kernels].iter().for_each(|side| side.record(context, side.begin));
        copy();
        run(times);
        [&copies, &kernels].iter().for_each(|side| side.record(context, side.end));
        [&copies, &kernels].iter().for_each(|side| self.device.wait(side.end));
        let elapsed =
            |begin: GpuEvent, end: GpuEvent| context.elapsed(begin, end).expect("both were passed").as_secs_f64() * 1e6;
        let firsts = [copies.begin, kernels.begin];
        let together = firsts
            .iter()
            .map(|begin| elapsed(*begin, copies.end).max(elapsed(*begin, kernels.end)))
            .fold(0.0, f64::max);
        let hidden = (copied + computed - together) / copied.min(computed) * 100.0;
        println!(
            "\noverlap: copy of {} MiB {copied:.0} µs, {times} kernels {computed:.0} µs, both {together:.0} µs: \
             {hidden:.0} % of the shorter is hidden{}",
            size >> 20,
            self.scale.note()
        );
        // SAFETY: it came from this context, and the copies were waited for.
        unsafe { context.free_pinned(pinned) };
    }

    /// Microseconds of `torch.topk` for each selection; empty without a PyTorch that sees the GPU.
    fn torch(&self, selections: &[(usize, usize, usize)]) -> Vec<f64> {
        let Scale { size, runs, repetitions, is_software, .. } = *self.scale;
        let shapes: Vec<String> = selections.iter().map(|shape| format!("{shape:?}")).collect();
        let program = format!(
            "
import torch
for rows, classes, count in [{}]:
    turns = max({size} // (rows * classes * 4), 1)
    inputs = torch.randn(turns, rows, classes, device='cuda')
    best = 1e9
    for _ in range({repetitions} + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for run in range({runs}):
            torch.topk(inputs[run % turns], count)
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) * 1000 / {runs})
    print(best)
",
            shapes.join(", ")
        );
        // PyTorch calls more of the driver than the software GPU has.
        let output = (!is_software).then(|| Command::new("python3").args(["-c", &program]).output());
        match output {
            Some(Ok(output)) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.parse().ok()).collect()
            }
            _ => {
                println!("no PyTorch with this GPU: nothing beside torch.topk");
                Vec::new()
            }
        }
    }
}

/// A stream with the events around its work.
struct Side {
    stream: GpuStream,
    begin: GpuEvent,
    end: GpuEvent,
}

impl Side {
    fn new(context: &dyn GpuContext) -> Self {
        let event = || context.new_event(true).expect("an event is made");
        Self { stream: context.new_stream().expect("a stream is made"), begin: event(), end: event() }
    }

    fn record(&self, context: &dyn GpuContext, event: GpuEvent) {
        context.record(event, self.stream).expect("the stream takes an event");
    }

    /// Microseconds that work takes alone.
    fn timed(&self, device: &Device, work: impl FnOnce()) -> f64 {
        let context = device.context();
        self.record(context, self.begin);
        work();
        self.record(context, self.end);
        device.wait(self.end);
        context.elapsed(self.begin, self.end).expect("both were passed").as_secs_f64() * 1e6
    }
}

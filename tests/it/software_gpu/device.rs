//! The driver's calls, each with its required effect, in a process of its own that finds the software GPU.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use deuteron::backend::gpu::cuda;
use deuteron::backend::gpu::driver::{DevicePointer, GpuFault, KernelValue, LaunchShape, MatrixProduct};
use deuteron::backend::kernel::{KernelModule, pointwise};
use deuteron::tensor::Datatype;

use super::machine::Machine;
use crate::kernels::device::Device;

/// Set in the process that a test starts.
const INNER: &str = "DEUTERON_SOFTWARE_GPU_TEST";

/// Runs a test of this binary in a process that finds the libraries; in that process, runs the body.
fn inside(machine: Option<Machine>, test: &str, body: impl FnOnce()) -> Option<Machine> {
    if std::env::var_os(INNER).is_some() {
        body();
        return None;
    }
    let machine = machine?;
    let mut command = Command::new(std::env::current_exe().expect("a process knows its program"));
    machine.prepare(command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(INNER, "1"));
    let output = command.output().expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{}", machine.log());
    Some(machine)
}

fn uploaded(device: &Device, values: &[f32]) -> DevicePointer {
    device.upload(bytemuck::cast_slice(values))
}

#[test]
fn products_are_those_of_a_loop_in_every_layout_with_and_without_bias_and_relu() {
    let test = "software_gpu::device::products_are_those_of_a_loop_in_every_layout_with_and_without_bias_and_relu";
    let machine = inside(Machine::new(), test, || {
        let device = Device::open().unwrap();
        let mut blas = device.context().new_blas().unwrap();
        let mut count = 0;
        let shapes = [(1, 1, 1), (1, 64, 10), (3, 5, 7), (17, 33, 2), (2, 8, 129)];
        for (turn, (rows, inner, columns)) in shapes.into_iter().cycle().take(shapes.len() * 8).enumerate() {
            let flag = |bit: usize| ((turn / shapes.len()) >> bit) & 1 == 1;
            let (is_transposed, has_relu, has_bias) = (flag(0), flag(1), flag(2));
            let values = |count: usize, step: usize| -> Vec<f32> {
                (0..count).map(|index| ((index * step + turn) % 23) as f32 / 8.0 - 1.3).collect()
            };
            let (input, weight, bias) = (values(rows * inner, 7), values(inner * columns, 5), values(columns, 3));
            let mut want = Vec::new();
            for row in 0..rows {
                for (column, bias) in bias.iter().enumerate() {
                    let at = |step: usize| if is_transposed { column * inner + step } else { step * columns + column };
                    let sum: f32 = (0..inner).map(|step| input[row * inner + step] * weight[at(step)]).sum();
                    let sum = if has_bias { sum + bias } else { sum };
                    want.push(if has_relu { sum.max(0.0) } else { sum });
                }
            }
            let output = uploaded(&device, &vec![f32::NAN; rows * columns]);
            let matmul = MatrixProduct {
                rows,
                inner,
                columns,
                is_transposed,
                has_relu,
                input: uploaded(&device, &input),
                weight: uploaded(&device, &weight),
                bias: has_bias.then(|| uploaded(&device, &bias)),
                output,
            };
            device.timed(|| blas.enqueue(device.stream(), &matmul).unwrap());
            let got = device.download(output, rows * columns * 4);
            let got: Vec<f32> = got.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let is_near = got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-3);
            assert!(is_near, "{matmul:?}: {got:?} and not {want:?}");
            count += 1;
        }
        println!("{count} products");
    });
    if let Some(machine) = machine {
        assert!(!machine.log().contains("misuse"), "{}", machine.log());
    }
}

#[test]
fn a_kernel_that_leaves_its_memory_breaks_its_context_and_no_other() {
    let test = "software_gpu::device::a_kernel_that_leaves_its_memory_breaks_its_context_and_no_other";
    let machine = inside(Machine::new(), test, || {
        let device = Device::open().unwrap();
        let whole = Device::open().unwrap();
        let run = |device: &Device, count: u64| {
            let context = device.context();
            let module = context.load_module(KernelModule::Pointwise.ptx()).unwrap();
            let function = context.function(module, "pointwise_activation").unwrap();
            let memory = device.alloc(1 << 12);
            let values = [
                KernelValue::Pointer(memory),
                KernelValue::Pointer(memory),
                KernelValue::U64(count),
                KernelValue::U32(1),
                KernelValue::U32(6),
            ];
            let shape = LaunchShape { grid: [4, 1], threads: 256, shared_size: 0 };
            let event = context.new_event(false).unwrap();
            context.launch(device.stream(), function, shape, &values).unwrap();
            // A kernel may have failed by now, and then this call fails too.
            context.record(event, device.stream())?;
            loop {
                match context.is_passed(event) {
                    Ok(true) => return Ok(()),
                    Ok(false) => std::thread::yield_now(),
                    Err(error) => return Err(error),
                }
            }
        };
        assert_eq!(run(&device, 1 << 10), Ok(()));
        let error = run(&device, 1 << 16).unwrap_err();
        let told = error.text.starts_with("CUDA_ERROR_ILLEGAL_ADDRESS (700) in cu");
        assert!(error.fault == GpuFault::Sticky && told, "{error:?}");
        assert_eq!(device.context().alloc(16).unwrap_err().fault, GpuFault::Sticky, "every later call fails");
        assert_eq!(run(&whole, 1 << 10), Ok(()));
    });
    if let Some(machine) = machine {
        assert!(machine.log().contains("illegal: pointwise_activation: an access to memory"), "{}", machine.log());
    }
}

#[test]
fn what_the_documentation_forbids_is_written_down() {
    let test = "software_gpu::device::what_the_documentation_forbids_is_written_down";
    let machine = inside(Machine::new(), test, || {
        let driver = cuda::find().unwrap();
        let context = driver.new_context(0).unwrap();
        let pointer = context.alloc(100).unwrap();
        context.free(pointer);
        context.free(pointer);
        let (stream, event) = (context.new_stream().unwrap(), context.new_event(false).unwrap());
        // SAFETY: it is used once more, which this GPU refuses by the number of the stream.
        unsafe { context.end_stream(stream) };
        assert!(context.record(event, stream).is_err());
        assert!(context.elapsed(event, event).is_err());
        assert!(context.upload(&[1, 2, 3], pointer).is_err());
        assert!(context.function(context.load_module(KernelModule::Topk.ptx()).unwrap(), "nope").is_err());
        assert!(context.load_module("no PTX").is_err());
        // One argument word less than the shape allows, and memory that is never given back.
        let function = context.load_module(KernelModule::Pointwise.ptx()).unwrap();
        let function = context.function(function, "softmax_block").unwrap();
        let stream = context.new_stream().unwrap();
        let shape = LaunchShape { grid: [1, 1], threads: 1024, shared_size: 0 };
        assert_eq!(
            context.launch(stream, function, shape, &[KernelValue::U32(0); 5]).unwrap_err().fault,
            GpuFault::Transient
        );
        let taken = context.free_memory().unwrap();
        context.alloc(1 << 20).unwrap();
        assert_eq!(taken - context.free_memory().unwrap(), 1 << 20);
    });
    let Some(machine) = machine else { return };
    let log = machine.log();
    for want in [
        "misuse: device memory is given back that was not taken, or twice",
        "misuse: a stream that was destroyed, or is of another context",
        "misuse: the time of an event that keeps none, or was not recorded",
        "misuse: a copy to no memory of the device",
        "misuse: a launch of softmax_block in a shape that it may not have",
        "leak: 1 pieces of device memory when their context was destroyed",
        "leak: 1 streams when their context was destroyed",
        "leak: 1 events when their context was destroyed",
    ] {
        assert!(log.contains(want), "{want}:\n{log}");
    }
}

/// Holds a stream until it is released.
#[derive(Default)]
struct Gate(AtomicBool);

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        while !self.0.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn streams_go_side_by_side_and_each_keeps_its_order() {
    let test = "software_gpu::device::streams_go_side_by_side_and_each_keeps_its_order";
    let machine = inside(Machine::new(), test, || {
        let device = Device::open().unwrap();
        let context = device.context();
        let gate = Arc::new(Gate::default());
        let waker = Arc::new(Waker::from(Arc::clone(&gate)));
        let plan = pointwise::activation_plan(1024, pointwise::Activation::Relu, Datatype::Fp32).unwrap();
        let run = |is_held: bool| {
            let (memory, stream) = (uploaded(&device, &[-1.0; 1024]), context.new_stream().unwrap());
            let (begin, end) = (context.new_event(true).unwrap(), context.new_event(true).unwrap());
            context.record(begin, stream).unwrap();
            if is_held {
                context.wake(stream, &waker).unwrap();
            }
            device.enqueue_on(stream, &plan, |_| memory);
            context.record(end, stream).unwrap();
            (memory, begin, end)
        };
        let (held_memory, held_begin, held_end) = run(true);
        let (memory, begin, end) = run(false);
        device.wait(end);
        assert_eq!(device.download(memory, 4096), [0; 4096], "it ran while the other was held");
        assert!(!context.is_passed(held_end).unwrap(), "nobody passes what holds the stream");
        assert_eq!(device.download(held_memory, 4096), bytemuck::cast_slice::<f32, u8>(&[-1.0; 1024]));
        gate.0.store(true, Ordering::SeqCst);
        device.wait(held_end);
        assert_eq!(device.download(held_memory, 4096), [0; 4096]);
        assert!(context.elapsed(held_begin, held_end).unwrap() >= context.elapsed(begin, end).unwrap());
    });
    if let Some(machine) = machine {
        assert!(!machine.log().contains("misuse"), "{}", machine.log());
    }
}

/// The answer of [`cuda::find`], in a process of its own.
#[test]
fn found() {
    if std::env::var_os(INNER).is_some() {
        match cuda::find() {
            Ok(driver) => println!("found: {} devices", driver.devices().len()),
            Err(why) => println!("found: {why}"),
        }
    }
}

/// The answer of a process on a machine with these libraries.
pub fn found_with(machine: &Machine, libraries: Option<&std::path::Path>) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a process knows its program"));
    command.args(["--exact", "software_gpu::device::found", "--nocapture", "--test-threads=1"]).env(INNER, "1");
    match libraries {
        Some(libraries) => machine.prepare_with(&mut command, libraries),
        None => machine.prepare(&mut command),
    }
    let output = command.output().expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !text.contains("panicked"), "{text}");
    let line = text.lines().find_map(|line| line.split_once("found: ")).unwrap_or_else(|| panic!("{text}"));
    line.1.to_owned()
}

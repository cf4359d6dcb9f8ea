//! The kernels on a GPU, over the grid that `tests/it/kernels.rs` emulates, and the speed of the kernels, the GPU
//! executor and a server there. `.ci/run gpu` runs it; without a driver or a device, each test is skipped with a
//! message. `.ci/run software-gpu` runs it on the software GPU, with small shapes, to show that it works: its figures
//! have no meaning there.

#![expect(unsafe_code, reason = "host memory is handed to the driver by its address")]

mod bandwidth;
mod executor;
mod served;

use crate::kernels::device::Device;
use crate::kernels::{pointwise, reshape, topk};
use crate::support::skipped::{is_asked_for, skip};

/// The amount of work that is measured.
pub struct Scale {
    /// True if the GPU is the software one.
    pub is_software: bool,
    /// Bytes that inputs of one shape take together: several times a cache.
    pub size: usize,
    /// Consecutive runs that are timed as one.
    pub runs: usize,
    /// Repetitions, of which the best counts.
    pub repetitions: usize,
    /// Batches of one row.
    pub rounds: usize,
    /// Requests in flight.
    pub in_flight: [usize; 2],
    /// Time for which a server is measured.
    pub interval_ms: usize,
}

impl Scale {
    fn of(device: &Device) -> Self {
        let is_software = device.properties().name.starts_with("Software GPU");
        if is_software {
            let (size, in_flight) = (1 << 22, [1, 4]);
            return Self { is_software, size, runs: 2, repetitions: 1, rounds: 20, in_flight, interval_ms: 200 };
        }
        let (size, in_flight) = (1 << 29, [1, 64]);
        Self { is_software, size, runs: 40, repetitions: 5, rounds: 2_000, in_flight, interval_ms: 2_000 }
    }

    /// A note beside figures without meaning.
    pub const fn note(&self) -> &'static str {
        if self.is_software { ": ON THE SOFTWARE GPU, FIGURES WITHOUT WORTH" } else { "" }
    }
}

fn device() -> Option<(Device, Scale)> {
    if !is_asked_for("gpu") {
        return None;
    }
    match Device::open() {
        Ok(device) => {
            let scale = Scale::of(&device);
            println!("{}{}", device.properties().name, scale.note());
            Some((device, scale))
        }
        Err(why) => {
            skip(&format!("no GPU: {why}"));
            None
        }
    }
}

#[test]
fn kernels_do_on_a_gpu_what_their_twins_do() {
    let Some((device, scale)) = device() else { return };
    // The emulator of `tests/it/kernels.rs` runs them all on the host.
    let step = if scale.is_software { 17 } else { 1 };
    let mut count = 0;
    for case in topk::cases().chain(topk::large()).chain(reshape::cases()).chain(pointwise::cases()).step_by(step) {
        device.check(&case);
        count += 1;
    }
    println!("{count} cases on {}", device.properties().name);
    assert!(count > 20);
}

#[test]
fn the_bandwidth_of_the_kernels_is_told() {
    let Some((device, scale)) = device() else { return };
    bandwidth::print(&device, &scale);
}

#[test]
fn what_the_executor_adds_is_told() {
    let Some((_, scale)) = device() else { return };
    executor::print(&scale);
}

#[test]
fn what_a_server_makes_of_it_is_told() {
    let Some((_, scale)) = device() else { return };
    served::print(&scale);
}

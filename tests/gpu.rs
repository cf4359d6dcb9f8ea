//! The kernels on a GPU, over the grid that `tests/kernels.rs` emulates, and what bandwidth they reach. `.ci/run gpu`
//! runs it; where no driver or no device is, each test says so and passes over.

#![expect(unsafe_code, reason = "host memory is handed to the driver by its address")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "kernels/bandwidth.rs"]
mod bandwidth;
#[path = "kernels/case.rs"]
mod case;
#[path = "kernels/device.rs"]
mod device;
#[path = "kernels/pointwise.rs"]
mod pointwise;
#[path = "kernels/reshape.rs"]
mod reshape;
#[path = "kernels/topk.rs"]
mod topk;

use device::Device;

fn device() -> Option<Device> {
    match Device::open() {
        Ok(device) => Some(device),
        Err(why) => {
            println!("skipped, no GPU: {why}");
            None
        }
    }
}

#[test]
fn kernels_do_on_a_gpu_what_their_twins_do() {
    let Some(device) = device() else { return };
    let mut count = 0;
    for case in topk::cases().chain(topk::large()).chain(reshape::cases()).chain(pointwise::cases()) {
        device.check(&case);
        count += 1;
    }
    println!("{count} cases on {}", device.properties().name);
}

#[test]
fn the_bandwidth_of_the_kernels_is_told() {
    let Some(device) = device() else { return };
    bandwidth::print(&device);
}

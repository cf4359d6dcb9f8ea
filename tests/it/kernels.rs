//! The kernels without a GPU. Their PTX is held to the table of launches; it is the CUDA compiler's output for
//! `kernels/*.cu`, and assembles for every GPU; and the same source, run on the host a block at a time, agrees with the
//! CPU twins. On a GPU `.ci/run gpu` checks the last.

pub mod case;
mod compiler;
pub mod device;
mod emulator;
pub mod pointwise;
pub mod reshape;
pub mod topk;

use std::collections::BTreeMap;

use deuteron::backend::kernel::{KernelModule, KernelParameter, entries};

use case::Case;
use compiler::Compiler;
use emulator::Emulator;

#[test]
fn every_entry_of_the_ptx_is_in_the_table_with_its_parameters_and_its_block() {
    let mut table = BTreeMap::new();
    for entry in entries() {
        let kinds: Vec<&str> = entry
            .parameters
            .iter()
            .map(|(_, kind)| if *kind == KernelParameter::U32 { ".u32" } else { ".u64" })
            .collect();
        let is_new = table.insert(entry.name, (entry.module, entry.threads, kinds)).is_none();
        assert!(is_new, "{} is in the table twice", entry.name);
    }
    let mut found = BTreeMap::new();
    for module in KernelModule::ALL {
        let ptx = module.ptx();
        for text in ptx.split(".visible .entry ").skip(1) {
            let (name, rest) = text.split_once('(').unwrap();
            let (parameters, rest) = rest.split_once(')').unwrap();
            let kinds = parameters.split(',').map(|line| line.split_whitespace().nth(1).unwrap()).collect::<Vec<_>>();
            let threads = rest.split_once(".maxntid ").unwrap().1.split(',').next().unwrap().parse::<u32>().unwrap();
            found.insert(name, (module, threads, kinds));
        }
        // A driver of CUDA 11 takes it, on a GPU of 2018.
        assert!(ptx.contains("\n.version 7.0\n.target sm_75\n"), "{}", module.name());
    }
    assert_eq!(found, table);
    // The names too: they are in the source alone.
    for entry in entries() {
        let names: Vec<&str> = entry.parameters.iter().map(|(name, _)| *name).collect();
        assert_eq!(compiler::parameter_names(entry.module, entry.name), names, "{}", entry.name);
    }
}

#[test]
fn the_ptx_is_what_the_compiler_makes_of_the_source_and_assembles_for_every_gpu() {
    let Some(compiler) = Compiler::create() else { return };
    for module in KernelModule::ALL {
        compiler.check_ptx(module);
        for architecture in ["sm_75", "sm_80", "sm_90", "sm_100"] {
            compiler.check_assembly(module, architecture);
        }
    }
}

#[test]
fn the_software_gpu_has_the_types_and_numbers_of_cuda_h() {
    if let Some(compiler) = Compiler::create() {
        compiler.check_software_gpu();
    }
}

fn emulate(cases: impl IntoIterator<Item = Case>) {
    let Some(mut emulator) = Emulator::start() else { return };
    let mut count = 0_u64;
    for case in cases {
        count += 1;
        emulator.check(&case, count);
    }
    println!("{count} cases");
    assert!(count > 0);
}

#[test]
fn emulated_top_k_is_that_of_the_twin() {
    emulate(topk::cases());
}

#[test]
fn emulated_top_k_of_a_million_classes_is_that_of_the_twin() {
    emulate(topk::large());
}

#[test]
fn emulated_reshape_is_that_of_the_twin() {
    emulate(reshape::cases());
}

#[test]
fn emulated_pointwise_is_that_of_the_twin() {
    emulate(pointwise::cases());
}

//! The CUDA compiler of PyPI, in a virtual environment of the test's own: its PTX of `kernels/*.cu` is that of the
//! repository, and `ptxas` assembles it.
//!
//! After a change of a kernel: `UPDATE_EXPECT=1 cargo test --test it kernels::the_ptx` writes the PTX anew.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use deuteron::backend::kernel::KernelModule;

use crate::support::python::Environment;
use crate::support::skipped::skip_unless_ci;

pub struct Compiler {
    /// `bin`, `nvvm`, `include`.
    home: PathBuf,
}

/// The PTX that drivers since CUDA 11.0 take. The compiler writes that of its own release, of which nothing is used.
const VERSION: &str = ".version 7.0";

impl Compiler {
    /// `None` if Python cannot make an environment.
    pub fn create() -> Option<Self> {
        let home = Environment::shared()?.packages().join("nvidia/cu13");
        for bin in ["bin", "nvvm/bin"].map(|name| home.join(name)) {
            for program in fs::read_dir(bin).expect("the packages bring programs") {
                // Wheels drop the flag that a program may run.
                let path = program.expect("the folder is ours").path();
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
            }
        }
        Some(Self { home })
    }

    /// Compares the types and the numbers of the software GPU's driver with `cuda.h`.
    pub fn check_software_gpu(&self) {
        let mut command = Command::new("g++");
        command.args(["-std=c++17", "-fsyntax-only", "-DWITH_CUDA_H", "-I"]).arg(self.home.join("include"));
        match command.arg(folder("tests/software_gpu").join("cuda.cpp")).output() {
            Ok(output) => drop(told(output)),
            Err(_) => skip_unless_ci("no g++ to hold the software GPU to cuda.h with"),
        }
    }

    /// Compiles the source, and compares the result with the PTX of the repository.
    pub fn check_ptx(&self, module: KernelModule) {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.ptx", module.name()));
        let output = Command::new(self.home.join("bin/nvcc"))
            .args(["-ptx", "-arch=compute_75", "-std=c++17", "-Werror", "all-warnings", "-o"])
            .arg(&made)
            .arg(source(module))
            .output();
        told(output.expect("the compiler starts"));
        let text = fs::read_to_string(made).expect("the compiler writes it");
        let is_version = |line: &str| line.starts_with(".version ");
        let lines = text.lines().map(|line| if is_version(line) { VERSION } else { line });
        let text = lines.collect::<Vec<_>>().join("\n") + "\n";
        if env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(folder("kernels").join(format!("{}.ptx", module.name())), &text).expect("the file is ours");
        } else {
            let name = module.name();
            assert!(text == module.ptx(), "kernels/{name}.ptx is not of kernels/{name}.cu: UPDATE_EXPECT=1");
        }
    }

    /// Assembles the repository's PTX, and prints each kernel's use of a multiprocessor: no kernel may spill registers
    /// into memory.
    pub fn check_assembly(&self, module: KernelModule, architecture: &str) {
        let output = Command::new(self.home.join("bin/ptxas"))
            .args(["-v", "-arch", architecture, "-o", "/dev/null"])
            .arg(folder("kernels").join(format!("{}.ptx", module.name())))
            .output();
        let text = told(output.expect("the assembler starts"));
        let mut kernels = 0;
        for kernel in text.split("Compiling entry function '").skip(1) {
            let name = kernel.split('\'').next().unwrap_or_default();
            let has = |what: &str| kernel.contains(what);
            assert!(has("0 bytes spill stores, 0 bytes spill loads"), "{architecture}: {kernel}");
            let used = kernel.lines().find_map(|line| line.split("Used ").nth(1)).unwrap_or_default();
            println!("{architecture} {name}: {used}");
            kernels += 1;
        }
        assert!(kernels > 0, "{text}");
    }
}

/// The names of a kernel's parameters in the source, whose name a macro may have composed.
pub fn parameter_names(module: KernelModule, entry: &str) -> Vec<String> {
    let text = fs::read_to_string(source(module)).expect("the source is in the repository").replace('\\', " ");
    // `topk_warp_32(` is written `topk_warp_##BITS(`.
    let stem = entry.rsplit_once('_').map_or(entry, |(stem, _)| stem);
    let head = text.split("extern \"C\" __global__").skip(1).find_map(|kernel| {
        let name = |name: &str| kernel.split_once(name).filter(|(before, _)| !before.contains('{'));
        name(&format!(" {entry}("))
            .or_else(|| name(&format!(" {stem}_##BITS(")))
            .or_else(|| name(&format!(" {stem}_##NAME(")))
    });
    let (_, rest) = head.unwrap_or_else(|| panic!("{entry} is not in the source"));
    let parameters = rest.split(')').next().unwrap_or_default();
    let name =
        |parameter: &str| parameter.split_whitespace().last().unwrap_or_default().trim_start_matches('*').to_owned();
    parameters.split(',').map(name).collect()
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn source(module: KernelModule) -> PathBuf {
    folder("kernels").join(format!("{}.cu", module.name()))
}

/// The output of a program, which must have succeeded.
fn told(output: Output) -> String {
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

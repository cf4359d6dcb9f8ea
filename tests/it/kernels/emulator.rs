//! The kernels on the host: `kernels/*.cu` compiled by the C++ compiler with `emulate.h`, in a process of its own that
//! is handed cases. `emulator.cpp` is the other side.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use deuteron::backend::kernel::KernelArgument;

use super::case::Case;
use crate::support::skipped::skip_unless_ci;

pub struct Emulator {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Emulator {
    /// Starts it. `None` without a compiler: the test is then skipped, with a message. In CI (`CI=true`) that is a
    /// failure.
    pub fn start() -> Option<Self> {
        static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
        let program = PROGRAM.get_or_init(compiled).as_ref()?;
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("what was compiled starts");
        let input = BufWriter::new(child.stdin.take().expect("it is piped"));
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Some(Self { child, input, output })
    }

    /// Runs a case and compares it with the twin.
    pub fn check(&mut self, case: &Case, seed: u64) {
        match self.run(case, seed) {
            Ok(got) => case.check(&got),
            // The emulator's message is on standard error.
            Err(error) => panic!("{}: the emulator ended: {error}, {:?}", case.label, self.child.wait()),
        }
    }

    fn run(&mut self, case: &Case, seed: u64) -> std::io::Result<Vec<Vec<u8>>> {
        let number = |number: usize| (number as u32).to_le_bytes();
        self.input.write_all(&number(case.buffers.len()))?;
        for buffer in &case.buffers {
            self.input.write_all(&(buffer.before.len() as u64).to_le_bytes())?;
            self.input.write_all(&buffer.before)?;
        }
        self.input.write_all(&number(case.plan.launches.len()))?;
        for launch in &case.plan.launches {
            self.input.write_all(&number(launch.entry.name.len()))?;
            self.input.write_all(launch.entry.name.as_bytes())?;
            for size in [launch.grid[0], launch.grid[1], launch.entry.threads, launch.shared_size] {
                self.input.write_all(&size.to_le_bytes())?;
            }
            self.input.write_all(&seed.to_le_bytes())?;
            self.input.write_all(&number(launch.arguments.len()))?;
            for argument in &launch.arguments {
                let (kind, bits) = match *argument {
                    KernelArgument::U32(value) => (0, u64::from(value)),
                    KernelArgument::U64(value) => (1, value),
                    KernelArgument::Nowhere => (2, u64::MAX),
                    KernelArgument::Buffer(role) => {
                        let place = case.buffers.iter().position(|buffer| buffer.role == role);
                        (2, place.unwrap_or_else(|| panic!("{}: no {role:?}", case.label)) as u64)
                    }
                };
                self.input.write_all(&number(kind))?;
                self.input.write_all(&bits.to_le_bytes())?;
            }
        }
        self.input.flush()?;
        let read = |buffer: &super::case::Buffer| {
            let mut bytes = vec![0; buffer.before.len()];
            self.output.read_exact(&mut bytes).map(|()| bytes)
        };
        case.buffers.iter().map(read).collect()
    }
}

/// The program; the tests of one process share it.
fn compiled() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/emulator.cpp");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-emulator");
    let compiled = Command::new("g++")
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-o"])
        .args([&program, &source])
        .output();
    let Ok(compiled) = compiled else {
        skip_unless_ci("no g++ to compile the kernels for the host with");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Instruction counts of the pieces of a request's way, layer by layer, taken by callgrind and held against
//! `instructions.txt`: the cost of a change, the same on a busy machine. A count that differs by more than 3 % either
//! way fails, and so does an allocation more or less; `UPDATE_EXPECT=1` writes the table anew.
//!
//! `.ci/run instructions`. Another compiler makes other code, and code may choose by the processor's features: if they
//! differ from those of the table, differences are reported and nothing fails.

#[path = "../../../tests/support/callgrind.rs"]
mod callgrind;
mod cases;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::{env, fs};

use callgrind::{Cost, Table};
use cases::{CASES, Case, Work};

const TABLE: &str = "benches/instructions.txt";
/// Runs before the counting, so that kept memory is already allocated.
const WARM_UP: u64 = 3;
/// Runs that are counted.
const RUNS: u64 = 8;

fn main() -> ExitCode {
    // Cargo appends `--bench`.
    let mut arguments = env::args().skip(1).filter(|argument| argument != "--bench");
    if let Some(name) = arguments.next() {
        run(&name);
        return ExitCode::SUCCESS;
    }
    let rows = CASES.iter().filter(|case| case.is_counted).map(|case| (label(case), count(case)));
    let counted = Table { rows: rows.collect(), with: with() };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, counted.text()).expect("the table is ours");
    }
    let table = Table::parse(&fs::read_to_string(&path).unwrap_or_default());
    print!("{}", counted.text());
    let differences = table.differences(&counted);
    if differences.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("\nThese differ from {TABLE}, by more than {} % where it is instructions:", callgrind::TOLERANCE);
    differences.iter().for_each(|line| println!("  {line}"));
    if table.with == counted.with {
        println!("Where that is meant: UPDATE_EXPECT=1 .ci/run instructions");
        return ExitCode::FAILURE;
    }
    println!("The table was written with other tools, so that nothing fails:\n  {}\n  {}", table.with, counted.with);
    ExitCode::SUCCESS
}

fn label(case: &Case) -> String {
    format!("{}: {}", case.layer, case.name)
}

/// Runs a piece, here and now. Under callgrind, the work of [`measured`] is counted.
fn run(name: &str) {
    let case = CASES.iter().find(|case| label(case) == name).expect("it names a piece");
    let (mut work, _) = (case.make)();
    (0..WARM_UP).for_each(|_| work());
    let before = ALLOCATIONS.load(Relaxed);
    measured(&mut work);
    let allocations = ALLOCATIONS.load(Relaxed) - before;
    println!("{allocations}\n{}", features());
}

#[inline(never)]
fn measured(work: &mut Work) {
    for _ in 0..RUNS {
        work();
    }
}

/// Count of memory allocations.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted.
struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

#[expect(unsafe_code, reason = "whoever is asked for memory is so")]
// SAFETY: all is left to the system's allocator, which keeps what the trait asks for.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises are those that it needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Returns the cost of one run of a piece.
fn count(case: &Case) -> Cost {
    let binary = env::current_exe().expect("this runs");
    let out = env::temp_dir().join(format!("deuteron-callgrind-{}", std::process::id()));
    let (allocations, _) = under_callgrind(&binary, &out, &label(case));
    let text = fs::read_to_string(&out).expect("callgrind wrote its counts");
    let _ = fs::remove_file(&out);
    let instructions = callgrind::own_instructions(&text, &binary.to_string_lossy());
    assert!(instructions > 0, "{}: nothing was counted", label(case));
    Cost { instructions: instructions / RUNS, allocations: allocations / RUNS }
}

/// Runs a piece: its allocations, and the processor's features that it sees.
fn under_callgrind(binary: &Path, out: &Path, name: &str) -> (u64, String) {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--toggle-collect=*instructions::measured*"]);
    command.arg(format!("--callgrind-out-file={}", out.display())).arg(binary).arg(name);
    // Addresses on the stack begin behind the environment, and alignment may take instructions.
    let output = command.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default()).output();
    let output = output.expect("valgrind is installed");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let (allocations, features) = printed.split_once('\n').expect("it prints both");
    (allocations.parse().expect("it is a count"), features.trim().to_owned())
}

/// The compiler, and the processor's features that code under valgrind sees.
fn with() -> String {
    let rustc = env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
    let version = Command::new(rustc).arg("--version").output().expect("cargo found the compiler");
    let case = CASES.iter().find(|case| case.is_counted).expect("some are");
    let binary = env::current_exe().expect("this runs");
    let (_, features) = under_callgrind(&binary, Path::new("/dev/null"), &label(case));
    format!("{}, {} {features}", String::from_utf8_lossy(&version.stdout).trim(), env::consts::ARCH)
}

/// The features by which the dependencies choose their code.
#[cfg(target_arch = "x86_64")]
fn features() -> String {
    let features = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    let seen: Vec<_> = features.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect();
    seen.join(" ")
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> String {
    String::new()
}

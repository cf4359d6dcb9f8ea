//! The `deuteron` program: reads the command line and runs the server, the load generator, `config show`,
//! `doctor` or `init`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use deuteron::cli::{self, Command, Environment};
use deuteron::log::LogTerminal;
use deuteron::settings::Supervision;
use deuteron::{client, loadgen, server};

/// The memory of requests goes back to the system within seconds; the C library's allocator keeps
/// it forever (`docs/decisions/0030`).
#[cfg(not(feature = "system-allocator"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's options. Pages that are free for three seconds are returned, by threads of its own,
/// so that no shard does it within a request; those of tensors of many megabytes too, which it
/// would return at once.
#[cfg(not(feature = "system-allocator"))]
#[expect(unsafe_code, reason = "the name by which jemalloc finds its options")]
// SAFETY: the symbol is jemalloc's own, and it expects a pointer to a string that ends with a zero.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_OPTIONS: &[u8; 81] =
    b"background_thread:true,oversize_threshold:0,dirty_decay_ms:3000,muzzy_decay_ms:0\0";

/// The packages of the program, at the place for scanners of binaries: JSON in a zlib stream, as
/// `cargo auditable` writes it.
#[used]
#[expect(unsafe_code, reason = "the section by which scanners find it")]
// SAFETY: nothing but scanners reads the section, and they expect these bytes.
#[unsafe(link_section = ".dep-v0")]
static DEPENDENCIES: [u8; include_bytes!(concat!(env!("OUT_DIR"), "/dependencies.z")).len()] =
    *include_bytes!(concat!(env!("OUT_DIR"), "/dependencies.z"));

/// Has jemalloc return all pages that are free now, when memory is short.
#[cfg(not(feature = "system-allocator"))]
#[expect(unsafe_code, reason = "jemalloc is controlled by a function of C")]
fn give_back_free_pages() {
    // All arenas (`MALLCTL_ARENAS_ALL`). It fails only without such a control.
    let name = c"arena.4096.purge";
    // SAFETY: the name ends with a zero, and the control neither reads nor writes anything of the caller's.
    let _ = unsafe {
        tikv_jemalloc_sys::mallctl(name.as_ptr(), std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), 0)
    };
}

/// Does nothing: the C library's allocator keeps free memory.
#[cfg(feature = "system-allocator")]
fn give_back_free_pages() {}

fn main() -> ExitCode {
    // The linker leaves out unreferenced symbols.
    std::hint::black_box(&DEPENDENCIES);
    deuteron::runtime::clock::now();
    let environment = Environment {
        variables: &|name| std::env::var_os(name),
        has_path: &|word| Path::new(word).exists(),
        read_file: &cli::read_file,
    };
    match cli::parse(std::env::args_os().skip(1), environment) {
        Ok(Command::Ask(question)) => client::ask::run(&question),
        Ok(Command::Bench(settings)) => loadgen::run(&settings),
        Ok(Command::CompareSteps(comparison)) => client::compare::run(&comparison),
        Ok(Command::Check(order)) => server::check::run(*order),
        Ok(Command::Complain(faults)) => {
            faults.iter().for_each(|fault| print_error(fault));
            ExitCode::FAILURE
        }
        Ok(Command::Doctor(settings)) => server::doctor::run(&settings),
        Ok(Command::Help(text)) => {
            let is_shown = std::io::stdout().is_terminal() && cli::pager::show(&text, environment.variables);
            if is_shown { ExitCode::SUCCESS } else { print(&text) }
        }
        Ok(Command::Health(question)) => client::health::run(&question),
        Ok(Command::Init(model)) => match model.write() {
            Ok(text) => print(&text),
            Err(why) => fail(&why),
        },
        Ok(Command::MakeKey(new)) => server::key::run(&new),
        Ok(Command::Print(text)) => print(&text),
        Ok(Command::RunBackend) => server::run_backend(),
        Ok(Command::RunEngine) => server::run_engine(),
        Ok(Command::Serve(settings)) => {
            match Supervision::read(environment.variables, std::process::id(), std::os::unix::process::parent_id()) {
                Ok(supervision) => {
                    server::run(&settings, &supervision, LogTerminal::find(environment.variables), give_back_free_pages)
                }
                Err(why) => fail(&why),
            }
        }
        Ok(Command::ShowConfig(settings, form)) => server::show::run(&settings, form),
        Ok(Command::SuggestSteps(settings, writes)) => server::suggest::run(&settings, writes),
        Ok(Command::TryLoad(settings)) => server::try_load(&settings),
        Err(why) => {
            print_error(&why);
            ExitCode::from(INVALID_COMMAND_LINE)
        }
    }
}

/// The exit code for a command line that is not valid, as of other programs.
const INVALID_COMMAND_LINE: u8 = 2;

fn fail(why: &str) -> ExitCode {
    print_error(why);
    ExitCode::FAILURE
}

fn print_error(why: &str) {
    let terminal = LogTerminal::find(&|name| std::env::var_os(name));
    // Errors are ignored: without a reader it is not missed.
    let _ = writeln!(std::io::stderr(), "{} {why}", LogTerminal::emphasized(terminal, "error:"));
}

/// A reader such as `head` may leave before the end, which is no failure.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

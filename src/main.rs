//! The `deuteron` program: reads the command line and runs the server, the load generator, `config show`,
//! `doctor` or `init`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use deuteron::cli::{self, Command, Environment};
use deuteron::settings::Supervision;
use deuteron::{loadgen, server};

fn main() -> ExitCode {
    deuteron::runtime::clock::now();
    let environment =
        Environment { variables: &|name| std::env::var_os(name), has_path: &|word| Path::new(word).exists() };
    match cli::parse(std::env::args_os().skip(1), environment) {
        Ok(Command::Bench(settings)) => loadgen::run(&settings),
        Ok(Command::Doctor(settings)) => server::doctor::run(&settings),
        Ok(Command::Health(question)) => server::health::run(&question),
        Ok(Command::InitPython(model)) => match model.write() {
            Ok(text) => print(&text),
            Err(why) => fail(&why),
        },
        Ok(Command::Print(text)) => print(&text),
        Ok(Command::RunEngine) => server::run_engine(),
        Ok(Command::Serve(settings)) => {
            match Supervision::read(environment.variables, std::process::id(), std::os::unix::process::parent_id()) {
                Ok(supervision) => server::run(&settings, &supervision),
                Err(why) => fail(&why),
            }
        }
        Ok(Command::ShowConfig(settings, form)) => server::show::run(&settings, form),
        Ok(Command::TryLoad(settings)) => server::try_load(&settings),
        Err(why) => fail(&why),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

/// A reader such as `head` may leave before the end, which is no failure.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

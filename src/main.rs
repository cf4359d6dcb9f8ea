//! The `deuteron` program: reads the command line and runs the server, the load generator or `config show`.

use std::process::ExitCode;

use deuteron::config::{self, Command};
use deuteron::{cli, server};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "bench") {
        return cli::bench(std::env::args_os().skip(2));
    }
    deuteron::runtime::clock::now();
    match config::parse_command(std::env::args_os().skip(1)) {
        Ok(Command::Serve(settings)) => server::run(&settings),
        Ok(Command::ShowConfig(settings, form)) => server::show::run(&settings, form),
        Ok(Command::Help) => {
            print!("{}", config::help());
            ExitCode::SUCCESS
        }
        Ok(Command::Version) => {
            println!("deuteron {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

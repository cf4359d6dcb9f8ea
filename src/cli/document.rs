//! What is made of the declarations of commands and flags besides their help: completions and pages of the manual.

use clap::{Arg, ArgMatches, value_parser};
use clap_complete::Shell;

use crate::cli::{PROGRAM, program_command};

/// The shell of `deuteron completions`.
pub(super) fn shell_argument() -> Arg {
    let shells = value_parser!(Shell);
    Arg::new("shell").value_name("SHELL").required(true).value_parser(shells).help("Whose completions")
}

/// The script that a shell reads.
pub(super) fn completions(matches: &ArgMatches) -> String {
    let Some(shell) = matches.get_one::<Shell>("shell") else { return String::new() };
    let mut text = Vec::new();
    clap_complete::generate(*shell, &mut program_command(), PROGRAM, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The command of `deuteron man`.
pub(super) fn page_argument() -> Arg {
    Arg::new("command").value_name("COMMAND").value_parser(["serve", "bench"]).help("Of this command [default: all]")
}

/// A page of the manual, for `man -l`.
pub(super) fn man(matches: &ArgMatches) -> String {
    let mut program = program_command();
    program.build();
    let wanted = matches.get_one::<String>("command");
    let page = wanted.and_then(|name| program.find_subcommand(name)).unwrap_or(&program).clone();
    let mut text = Vec::new();
    match clap_mangen::Man::new(page).render(&mut text) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => error.to_string(),
    }
}

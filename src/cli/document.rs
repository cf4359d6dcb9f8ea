//! Documents made from the declarations of commands and flags, besides their help: completions and
//! pages of the manual.

use clap::{Arg, ArgMatches};
use clap_complete::generate;
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::cli::{PROGRAM, program_command};

/// The shell of `deuteron completions`. The script was run in bash; for zsh and fish a test checks
/// only the text.
pub(super) fn shell_argument() -> Arg {
    let arg = Arg::new("shell").value_name("SHELL").required(true).value_parser(["bash", "fish", "zsh"]);
    arg.help("The shell")
}

/// The script that a shell reads.
pub(super) fn completions(matches: &ArgMatches) -> String {
    let mut program = program_command();
    let mut text = Vec::new();
    match matches.get_one::<String>("shell").map(String::as_str) {
        Some("fish") => generate(Fish, &mut program, PROGRAM, &mut text),
        Some("zsh") => generate(Zsh, &mut program, PROGRAM, &mut text),
        _ => generate(Bash, &mut program, PROGRAM, &mut text),
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The command of `deuteron man`.
pub(super) fn page_argument() -> Arg {
    Arg::new("command").value_name("COMMAND").value_parser(["serve", "bench"]).help("The command [default: all]")
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

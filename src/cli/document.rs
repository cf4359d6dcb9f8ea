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
    let shell = matches.get_one::<String>("shell").map(String::as_str);
    match shell {
        Some("fish") => generate(Fish, &mut program, PROGRAM, &mut text),
        Some("zsh") => generate(Zsh, &mut program, PROGRAM, &mut text),
        _ => generate(Bash, &mut program, PROGRAM, &mut text),
    }
    let script = String::from_utf8_lossy(&text).into_owned();
    match shell {
        Some("fish") => script + FISH_MODELS,
        Some("zsh") => with_zsh_models(&script),
        _ => script + BASH_MODELS,
    }
}

/// Names of models where a command takes one: those of the server that `ask --list` reaches, in bash at the address of the command
/// line.
const BASH_MODELS: &str = r#"
_deuteron_with_models() {
    local at words name url=() current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
    # Bash breaks addresses at their colons.
    read -ra words <<<"$COMP_LINE"
    case "${COMP_WORDS[1]} $before" in
        "ask ask" | "bench -m" | "bench --model-name")
            for ((at = 2; at < ${#words[@]}; at++)); do
                case "${words[at]}" in
                    -u | --url) url=(--url "${words[at+1]}") ;;
                    --url=*) url=("${words[at]}") ;;
                esac
            done
            if [[ $current != -* ]]; then
                COMPREPLY=()
                # Not by compgen, which runs what stands in its words.
                while IFS= read -r name; do
                    [[ $name != "$current"* ]] || COMPREPLY+=("$(printf %q "$name")")
                done < <(deuteron ask --list "${url[@]}" 2>/dev/null)
                return 0
            fi
            ;;
    esac
    _deuteron "$@"
}
complete -F _deuteron_with_models -o nosort -o bashdefault -o default deuteron 2>/dev/null ||
    complete -F _deuteron_with_models -o bashdefault -o default deuteron
"#;
const FISH_MODELS: &str = r#"
complete -c deuteron -n "__fish_seen_subcommand_from ask" -f -a "(deuteron ask --list 2>/dev/null)"
complete -c deuteron -n "__fish_seen_subcommand_from bench" -s m -l model-name -x -a "(deuteron ask --list 2>/dev/null)"
"#;

/// A script for zsh whose arguments for models are completed as by [`BASH_MODELS`].
fn with_zsh_models(script: &str) -> String {
    const FUNCTION: &str = r#"
_deuteron_models() {
    local names=(${(f)"$(deuteron ask --list 2>/dev/null)"})
    compadd -a names
}
"#;
    let script =
        script.replace("MODEL -- The model'\\''s name:_default", "MODEL -- The model'\\''s name:_deuteron_models");
    let script = script.replace("[The model; required]:NAME:", "[The model; required]:NAME:_deuteron_models");
    match script.split_once('\n') {
        Some((first, rest)) => format!("{first}\n{FUNCTION}{rest}"),
        None => script,
    }
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

//! The help of `-h`: the usage and the flags that are used most, on a screen of 24 lines and 80 columns. `--help` has all.

use std::ffi::OsString;

/// The flags of a server in the short help, each with its value and its effect.
const SERVER_FLAGS: &[(&str, &str)] = &[
    ("--http-port PORT", "HTTP, 8000 by default; 0 for any free one"),
    ("--grpc-port PORT", "gRPC, 8001 by default"),
    ("--metrics-port PORT", "metrics, 8002 by default"),
    ("--http-address ADDRESS", "0.0.0.0 by default; --grpc-address, …"),
    ("--model-control-mode MODE", "none, poll or explicit"),
    ("--exit-on-error=false", "serve the other models if one cannot be loaded"),
    ("--config FILE", "flags in TOML; see `deuteron config check`"),
    ("--gpu auto|off|require", "GPUs for models with KIND_GPU"),
    ("--api-keys-file FILE", "keys of clients, made by `deuteron key`"),
    ("--log-verbose LEVEL", "1 or more: log more"),
];

/// The number of them in the help of the program, which has its commands too.
const PROGRAM_FLAGS: usize = 6;

/// The flags of `bench` in the short help.
const BENCH_FLAGS: &[(&str, &str)] = &[
    ("-m, --model-name NAME", "the model; required"),
    ("-u, --url HOST:PORT", "localhost:8000 by default, for gRPC :8001"),
    ("-i, --protocol http|grpc", "http by default"),
    ("--concurrency-range A:B:STEP", "closed loop: requests in flight"),
    ("--request-rate-range A:B:STEP", "open loop: requests per second"),
    ("--search-slo p99=10ms", "find the highest rate that meets a goal"),
    ("-b, --batch-size COUNT", "rows in a request"),
    ("--input-data SOURCE", "JSON or binary file, folder, random or zero"),
    ("--request-count COUNT", "send a number of requests"),
    ("--compare HOST:PORT", "measure a second server in turns"),
    ("--plot FILE.svg", "draw latency and throughput"),
    ("--format table|json|csv", "form of the report"),
];

/// The flags of `ask` in the short help.
const ASK_FLAGS: &[(&str, &str)] = &[
    ("-i, --input [NAME=]VALUE", "a file, a JSON value or a text"),
    ("-H, --header 'NAME: VALUE'", "such as 'Authorization: Bearer KEY'"),
    ("-u, --url http[s]://HOST:PORT", "http://127.0.0.1:8000 by default"),
    ("--ca FILE.pem", "with TLS: the authorities of the server"),
];

/// The flags of `health` in the short help.
const HEALTH_FLAGS: &[(&str, &str)] = &[
    ("--url http[s]://HOST:PORT", "http://127.0.0.1:8000 by default"),
    ("--live", "live, instead of ready"),
    ("--ca FILE.pem", "with TLS: the authorities of the server"),
];

/// The flags of `steps suggest` in the short help.
const SUGGEST_FLAGS: &[(&str, &str)] = &[
    ("--write", "write a complete proposal as steps.json"),
    ("--backend-config SETTING", "python,interpreter=PATH: the Python to parse"),
    ("--config FILE", "flags in TOML; see `deuteron config check`"),
];

/// The flags of `check` in the short help.
const CHECK_FLAGS: &[(&str, &str)] = &[
    ("--json", "the report in JSON"),
    ("--gpu off|require", "as the server will have it"),
    ("--backend-directory DIRECTORY", "Triton's backends, of C++ or Python"),
    ("--backend-config SETTING", "python,interpreter=PATH: the models' Python"),
    ("--onnx-engine ENGINE", "auto, onnxruntime or embedded"),
    ("--follow-links=false", "refuse links that lead out of a repository"),
    ("--config FILE", "flags in TOML; see `deuteron config check`"),
];

/// Commands in the short help of the program.
const COMMANDS: &[(&str, &str)] = &[
    ("serve PATH...", "serve models; the word may be left out"),
    ("check PATH...", "list the models: served, or why not"),
    ("doctor PATH...", "check machine, flags and models"),
    ("bench -m NAME", "measure a server"),
    ("init KIND NAME", "create a model to start from"),
    ("config, health, key", "configurations; readiness; an API key"),
    ("completions, man, sbom, version", ""),
];

/// Returns true if the first request for help among the words is `-h`.
pub(super) fn is_asked_for(words: &[OsString]) -> bool {
    let asked = words.iter().take_while(|word| *word != "--").find(|word| *word == "-h" || *word == "--help");
    asked.is_some_and(|word| word == "-h")
}

/// Returns the short help of a command that has many flags; `None` for another. `path` is its name behind the program's.
pub(super) fn text(command: &clap::Command, path: &[&str]) -> Option<String> {
    let mut out = format!("{}\n\n", command.clone().render_usage());
    match path {
        [] => {
            out += "Commands:\n";
            out += &lines(COMMANDS);
            out += "\nMost used flags of a server:\n";
            out += &lines(SERVER_FLAGS.get(..PROGRAM_FLAGS).unwrap_or_default());
        }
        ["serve" | "doctor"] | ["config", "show"] => {
            out += "Most used flags:\n";
            out += &lines(SERVER_FLAGS);
        }
        ["ask"] => {
            out += "Most used flags:\n";
            out += &lines(ASK_FLAGS);
        }
        ["check"] => {
            out += "A PATH may be a Dockerfile, a compose file or a script of tritonserver's.\n\nMost used flags:\n";
            out += &lines(CHECK_FLAGS);
        }
        ["bench"] => {
            out += "Most used flags:\n";
            out += &lines(BENCH_FLAGS);
        }
        ["health"] => {
            out += "Most used flags:\n";
            out += &lines(HEALTH_FLAGS);
        }
        ["steps", "suggest"] => {
            out += "Most used flags:\n";
            out += &lines(SUGGEST_FLAGS);
        }
        _ => return None,
    }
    out += "\n--help lists all.\n";
    Some(out)
}

fn lines(entries: &[(&str, &str)]) -> String {
    entries.iter().map(|(name, effect)| format!("  {name:<31} {effect}").trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::program_command;

    #[test]
    fn the_short_help_fits_on_a_screen_and_names_flags_that_exist() {
        let mut program = program_command();
        program.build();
        let commands = [
            (&[][..], SERVER_FLAGS),
            (&["serve"][..], SERVER_FLAGS),
            (&["doctor"][..], SERVER_FLAGS),
            (&["config", "show"][..], SERVER_FLAGS),
            (&["ask"][..], ASK_FLAGS),
            (&["check"][..], CHECK_FLAGS),
            (&["bench"][..], BENCH_FLAGS),
            (&["health"][..], HEALTH_FLAGS),
            (&["steps", "suggest"][..], SUGGEST_FLAGS),
        ];
        for (path, flags) in commands {
            let command = path.iter().fold(&program, |command, name| command.find_subcommand(name).unwrap());
            let text = text(command, path).unwrap();
            assert!(text.lines().count() <= 24, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.ends_with("\n--help lists all.\n"), "{text}");
            for (flag, _) in flags {
                let (_, long) = flag.split_once("--").unwrap();
                let long = long.split([' ', '=']).next().unwrap();
                let known = command.get_arguments().any(|arg| arg.get_long() == Some(long));
                assert!(known, "{path:?} {long}");
            }
        }
    }

    #[test]
    fn the_first_of_the_two_flags_decides() {
        let check = |line: &str, want| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(is_asked_for(&words), want, "{line}");
        };
        check("-h", true);
        check("bench -h --help", true);
        check("bench --help -h", false);
        check("m -- -h", false);
        check("help", false);
    }
}

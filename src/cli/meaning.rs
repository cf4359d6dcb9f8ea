//! The commands that words of other programs mean, for the refusal of an unknown command.

/// The words, and the command to type.
const MEANINGS: &[(&[&str], &str)] = &[
    (
        &["call", "client", "curl", "generate", "infer", "inference", "predict", "query", "request", "send"],
        "`deuteron ask MODEL --input VALUE`",
    ),
    (&["benchmark", "load-test", "loadtest", "measure", "perf", "perf-analyzer"], "`deuteron bench -m NAME`"),
    (&["inspect", "list", "ls", "print", "show", "view"], "`deuteron config show PATH`"),
    (&["lint", "test", "validate", "verify"], "`deuteron check PATH` or `deuteron config check FILE`"),
    (&["add", "create", "new", "scaffold"], "`deuteron init python NAME`"),
    (&["launch", "load", "run", "start", "up"], "`deuteron serve PATH`"),
    (&["alive", "live", "ping", "ready", "status"], "`deuteron health`"),
    (&["apikey", "keygen", "token"], "`deuteron key NAME`"),
    (&["docs", "manual"], "`deuteron man`"),
];

/// Returns the command that a word means.
pub(super) fn of_command(word: &str) -> Option<&'static str> {
    MEANINGS.iter().find(|(words, _)| words.contains(&word)).map(|(_, meant)| *meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::program_command;

    #[test]
    fn each_word_is_no_command_and_means_one_that_exists() {
        let program = program_command();
        for (words, meant) in MEANINGS {
            assert!(words.iter().all(|word| program.find_subcommand(word).is_none()), "{words:?}");
            for line in meant.split(" or ") {
                let name = line.trim_matches('`').split(' ').nth(1).unwrap();
                assert!(program.find_subcommand(name).is_some(), "{line}");
            }
        }
        assert_eq!(of_command("infer"), Some("`deuteron ask MODEL --input VALUE`"));
        assert_eq!(of_command("srve"), None);
    }
}

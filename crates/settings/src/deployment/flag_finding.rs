//! The flags of tritonserver's command lines, each as `deuteron serve` takes it: by the same table. Pure.

use clap::Command;

use crate::table::SECTIONS;
use crate::{Settings, arguments};
use flags::{Flag, Takes, explain, flags};

/// The fate of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlagOutcome {
    /// It has no effect here, for this reason.
    Ignored(String),
    /// The server does not start with it, for this reason.
    Refused(String),
    /// It means the same here.
    Taken,
}

/// One flag of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagFinding {
    /// Its words, with its value in the same one.
    pub text: String,
    /// Its name here, without dashes; empty for a word that is no flag.
    pub name: &'static str,
    /// Its value; empty for a switch without one.
    pub value: String,
    /// Its fate.
    pub outcome: FlagOutcome,
}

/// Reads the flags of a command line, and the settings that they make: of those that are refused, none.
pub fn read_flags(words: &[String]) -> (Settings, Vec<FlagFinding>) {
    let mut settings = Settings::default();
    let mut findings = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let Some(flag) = flag(word) else {
            // The value of an unknown flag is not a word of its own.
            let value = words.next_if(|next| word.starts_with("--") && !word.contains('=') && !next.starts_with('-'));
            let text = value.map_or_else(|| word.clone(), |value| format!("{word} {value}"));
            let outcome = FlagOutcome::Refused(refusal(word));
            findings.push(FlagFinding { text, name: "", value: String::new(), outcome });
            continue;
        };
        let joined = word.split_once('=').map(|(_, value)| value.to_owned());
        let value = joined.or_else(|| match flag.takes {
            Takes::Switch => Some(String::new()),
            Takes::Many(_) | Takes::One(_) => words.next().cloned(),
        });
        let text = match &value {
            Some(value) if !value.is_empty() => format!("--{}={value}", flag.name()),
            _ => format!("--{}", flag.name()),
        };
        let outcome = outcome(flag, value.as_deref(), &mut settings);
        findings.push(FlagFinding { text, name: flag.name(), value: value.unwrap_or_default(), outcome });
    }
    (settings, findings)
}

fn outcome(flag: &Flag<Settings>, value: Option<&str>, settings: &mut Settings) -> FlagOutcome {
    let before = settings.warnings.len();
    let Some(value) = value else { return FlagOutcome::Refused("expected a value".to_owned()) };
    // A switch alone is on.
    let value = if flag.takes == Takes::Switch && value.is_empty() { "true" } else { value };
    let mut tried = settings.clone();
    if let Err(why) = flag.take(&mut tried, value) {
        return FlagOutcome::Refused(why);
    }
    *settings = tried;
    match settings.warnings.get(before..) {
        None | Some([]) => FlagOutcome::Taken,
        Some(warnings) => FlagOutcome::Ignored(warnings.join("; ")),
    }
}

/// The flag of a word: by its name, or by the beginning of the only one that it may be.
fn flag(word: &str) -> Option<&'static Flag<Settings>> {
    let name = word.strip_prefix('-').map(|name| name.strip_prefix('-').unwrap_or(name))?;
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    let has = |flag: &&'static Flag<Settings>, is: &dyn Fn(&str) -> bool| flag.names.iter().any(|known| is(known));
    if let Some(flag) = flags(SECTIONS).find(|flag| has(flag, &|known| known == name)) {
        return Some(flag);
    }
    let mut begun = flags(SECTIONS).filter(|flag| name.len() > 1 && has(flag, &|known| known.starts_with(name)));
    begun.next().filter(|_| begun.next().is_none())
}

/// The refusal of a word that is no flag, as the command line has it.
fn refusal(word: &str) -> String {
    // A word alone would be a path.
    if !word.starts_with('-') {
        return "a word that is neither a flag nor the value of one".to_owned();
    }
    let mut command = Command::new("serve").args(arguments()).infer_long_args(true).args_override_self(true);
    match command.try_get_matches_from_mut(["serve", word]) {
        Ok(_) => "expected a flag of tritonserver".to_owned(),
        Err(error) => explain(&error, &command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Vec<String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let told = |finding: &FlagFinding| match &finding.outcome {
            FlagOutcome::Taken => format!("{} ok", finding.text),
            FlagOutcome::Ignored(why) => format!("{} ignored: {why}", finding.text),
            FlagOutcome::Refused(why) => format!("{} refused: {why}", finding.text),
        };
        read_flags(&words).1.iter().map(told).collect()
    }

    #[test]
    fn each_flag_is_taken_ignored_or_refused_as_serve_does() {
        let check = |line: &str, want: &[&str]| assert_eq!(told(line), want, "{line}");
        check("--model-repository=/m --http-port 80", &["--model-repository=/m ok", "--http-port=80 ok"]);
        check("--model-store /m --model-repo /n", &["--model-repository=/m ok", "--model-repository=/n ok"]);
        check("--exit-on-error=false --log-verbose 1", &["--exit-on-error=false ok", "--log-verbose=1 ok"]);
        let pool = "--grpc-infer-allocation-pool-size=8 ignored: --grpc-infer-allocation-pool-size has no effect here: there \
                    is no pool of requests that could be sized";
        check("--grpc-infer-allocation-pool-size=8", &[pool]);
        check("--http-port=x", &["--http-port=x refused: expected a port from 0 to 65535"]);
        check("--http-port", &["--http-port refused: expected a value"]);
        let unknown = "--nope 1 refused: unknown flag '--nope'; --help lists the flags";
        check("--nope 1 --id=x", &[unknown, "--id=x ok"]);
        check("serve", &["serve refused: a word that is neither a flag nor the value of one"]);
        assert!(told("--log")[0].contains("is ambiguous"), "{:?}", told("--log"));
        let (settings, _) = read_flags(&["--model-repository=/m", "--http-port=x"].map(str::to_owned));
        assert_eq!(settings.repositories, [std::path::PathBuf::from("/m")], "a refused flag sets nothing");
    }
}

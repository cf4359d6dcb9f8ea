//! Compares Deuteron's answers with Triton's through the table of intended differences.

use crate::oracle::case::Case;

/// One intended difference.
#[derive(Clone, Copy)]
pub struct Difference {
    /// The decision, in a sentence.
    pub decision: &'static str,
    /// The answers that it is about.
    pub on: On,
    /// The answer that they become.
    pub becomes: Becomes,
}

/// The selection of Triton's answers.
#[derive(Clone, Copy)]
pub enum On {
    /// The answers to these cases, each of which must exist and must change.
    Cases(&'static [&'static str]),
    /// All answers that the function selects; at least one must change.
    Every(fn(&Case, &str) -> bool),
}

/// The change of Triton's answer.
#[derive(Clone, Copy)]
pub enum Becomes {
    /// This answer.
    Answer(&'static str),
    /// The function's answer to the case.
    Asked(fn(&Case) -> String),
    /// The same with every occurrence of the first text replaced by the second.
    Replaced(&'static str, &'static str),
    /// The function's rewriting of it.
    Rewritten(fn(&str) -> String),
}

impl Becomes {
    fn apply(self, case: &Case, answer: &str) -> String {
        match self {
            Self::Answer(text) => text.to_owned(),
            Self::Asked(answer) => answer(case),
            Self::Replaced(from, to) => answer.replace(from, to),
            Self::Rewritten(rewrite) => rewrite(answer),
        }
    }
}

/// One case with both answers.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    /// The request.
    pub case: &'a Case,
    /// Triton's answer.
    pub triton: &'a str,
    /// Deuteron's answer.
    pub deuteron: &'a str,
}

/// All complaints; empty if all is well.
pub fn compare(pairs: &[Pair<'_>], differences: &[Difference]) -> Vec<String> {
    let mut used = vec![false; differences.len()];
    let mut complaints: Vec<String> = pairs.iter().filter_map(|pair| judge(pair, differences, &mut used)).collect();
    for (difference, used) in differences.iter().zip(used) {
        if !used {
            complaints.push(format!("no answer shows the difference `{}`", difference.decision));
        }
        complaints.extend(unknown_cases(difference, pairs));
    }
    complaints
}

/// The answer that Deuteron must give if Triton gives this one.
pub fn decided(case: &Case, triton: &str, differences: &[Difference]) -> String {
    differences.iter().fold(triton.to_owned(), |answer, difference| {
        if is_about(difference, case, &answer) { difference.becomes.apply(case, &answer) } else { answer }
    })
}

/// Compares one answer with Triton's, changed by the table.
fn judge(pair: &Pair<'_>, differences: &[Difference], used: &mut [bool]) -> Option<String> {
    let mut want = pair.triton.to_owned();
    let mut decisions = Vec::new();
    for (difference, used) in differences.iter().zip(used) {
        if !is_about(difference, pair.case, &want) {
            continue;
        }
        let becomes = difference.becomes.apply(pair.case, &want);
        if becomes != want {
            *used = true;
            want = becomes;
            decisions.push(difference.decision);
        } else if matches!(difference.on, On::Cases(_)) {
            let Difference { decision, .. } = difference;
            return Some(format!("{}: `{decision}` changes nothing in\n{}", pair.case.name, pair.triton));
        }
    }
    (pair.deuteron != want).then(|| complaint(pair, &want, &decisions))
}

fn is_about(difference: &Difference, case: &Case, answer: &str) -> bool {
    match difference.on {
        On::Cases(names) => names.contains(&case.name.as_str()),
        On::Every(is_about) => is_about(case, answer),
    }
}

fn complaint(pair: &Pair<'_>, want: &str, decisions: &[&str]) -> String {
    let Pair { case, triton, deuteron } = pair;
    let reason = match (decisions, deuteron == triton) {
        ([], _) => "differs, and no decision says so".to_owned(),
        (_, true) => format!("is as Triton answers, against `{}`", decisions.join("`, `")),
        (_, false) => format!("is neither as Triton answers nor as decided by `{}`", decisions.join("`, `")),
    };
    let mut text = format!("{}: {reason}\n  Triton:   {}", case.name, triton.replace('\n', "\n            "));
    if !decisions.is_empty() {
        text.push_str(&format!("\n  decided:  {}", want.replace('\n', "\n            ")));
    }
    text + &format!("\n  Deuteron: {}", deuteron.replace('\n', "\n            "))
}

fn unknown_cases(difference: &Difference, pairs: &[Pair<'_>]) -> Vec<String> {
    let On::Cases(names) = difference.on else {
        return Vec::new();
    };
    let unknown = names.iter().filter(|name| !pairs.iter().any(|pair| pair.case.name == **name));
    unknown.map(|name| format!("`{}` names the case `{name}`, which is not there", difference.decision)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::case::Ask;

    /// The complaints of `compare` about one case named `one`, each in its first words.
    fn complaints(triton: &str, deuteron: &str, differences: &[Difference]) -> Vec<String> {
        let case = Case { name: "one".to_owned(), ask: Ask::Http(Vec::new()) };
        compare(&[Pair { case: &case, triton, deuteron }], differences)
    }

    fn refusal(on: On) -> Difference {
        Difference { decision: "malformed is 400", on, becomes: Becomes::Replaced("500", "400") }
    }

    const EVERY_500: On = On::Every(|_, answer| answer.starts_with("500"));
    const ONE: On = On::Cases(&["one"]);

    #[test]
    fn equal_answers_and_decided_differences_pass() {
        assert!(complaints("200 -", "200 -", &[]).is_empty());
        assert!(complaints("500 x", "400 x", &[refusal(EVERY_500)]).is_empty());
        assert!(complaints("500 x", "400 x", &[refusal(ONE)]).is_empty());
    }

    #[test]
    fn a_planted_difference_fails() {
        let told = complaints("200 -\n{\"a\":1}", "200 -\n{\"a\":2}", &[]);
        assert!(told.len() == 1 && told[0].contains("no decision says so"), "{told:?}");
        let told = complaints("500 x", "400 y", &[refusal(ONE)]);
        assert!(told.len() == 1 && told[0].contains("neither"), "{told:?}");
    }

    #[test]
    fn a_listed_difference_that_does_not_occur_fails() {
        for on in [EVERY_500, ONE] {
            let told = complaints("500 x", "500 x", &[refusal(on)]);
            assert!(told.len() == 1 && told[0].contains("is as Triton answers, against"), "{told:?}");
        }
        let told = complaints("200 x", "200 x", &[refusal(EVERY_500)]);
        assert!(told.len() == 1 && told[0].starts_with("no answer shows"), "{told:?}");
        let told = complaints("200 x", "200 x", &[refusal(ONE)]);
        assert!(told.len() == 2 && told[0].contains("changes nothing"), "{told:?}");
        let told = complaints("500 x", "400 x", &[refusal(On::Cases(&["one", "two"]))]);
        assert!(told.len() == 1 && told[0].contains("which is not there"), "{told:?}");
    }

    #[test]
    fn several_decisions_may_meet_in_one_answer() {
        let text = Difference {
            decision: "shorter text",
            on: ONE,
            becomes: Becomes::Rewritten(|answer| answer.replace("xx", "x")),
        };
        assert!(complaints("500 xx", "400 x", &[refusal(EVERY_500), text]).is_empty());
        let told = complaints("500 xx", "400 xx", &[refusal(EVERY_500), text]);
        assert!(told.len() == 1 && told[0].contains("`malformed is 400`, `shorter text`"), "{told:?}");
    }
}

//! The words of a command line of a shell, as far as deployments use them: quotes, backslashes, line ends behind one,
//! and the operators between commands. Variables and substitutions stay as they are written. Pure.

/// Returns the commands of a text, each as its words: they are separated by line ends, `;`, `&`, `&&`, `|` and `||`.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), _) => push(&mut word, letter),
            (_, '\\') => match letters.next() {
                // The line goes on.
                Some('\n') | None => {}
                Some('\r') => drop(letters.next_if_eq(&'\n')),
                Some(next) => push(&mut word, next),
            },
            (Some(_), _) => push(&mut word, letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => while letters.next_if(|next| *next != '\n').is_some() {},
            (None, '\n' | ';' | '&' | '|') => {
                // `2>&1` is no separator.
                if letter == '&' && word.as_ref().is_some_and(|word| word.ends_with('>')) {
                    push(&mut word, letter);
                    continue;
                }
                end(&mut word, &mut found);
                found.push(Vec::new());
            }
            (None, _) if letter.is_whitespace() => end(&mut word, &mut found),
            (None, _) => push(&mut word, letter),
        }
    }
    end(&mut word, &mut found);
    found.retain(|words| !words.is_empty());
    found
}

fn push(word: &mut Option<String>, letter: char) {
    word.get_or_insert_default().push(letter);
}

fn end(word: &mut Option<String>, found: &mut [Vec<String>]) {
    if let (Some(word), Some(last)) = (word.take(), found.last_mut()) {
        last.push(word);
    }
}

/// Returns a text with quotes where a shell would not read it as one word.
pub fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./=:,+@%^*{}$".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_as_a_shell_splits_it() {
        let check = |text: &str, want: &str| {
            let got: Vec<_> = commands(text).iter().map(|words| words.join("|")).collect();
            assert_eq!(got.join(" // "), want, "{text:?}");
        };
        check("a b  c", "a|b|c");
        check("a 'b c' \"d \\\" e\" f\\ g", "a|b c|d \" e|f g");
        check("a \\\n  b\nc && d; e | f || g &", "a|b // c // d // e // f // g");
        check("a \\\r\n b", "a|b");
        check("a > log 2>&1 # a comment\n# another\nb '' x#y", "a|>|log|2>&1 // b||x#y");
        check("a 'never closed", "a|never closed");
        check("a \\", "a");
        check("", "");
    }

    #[test]
    fn a_quoted_word_is_read_back() {
        for word in ["a", "--x=/m/1", "a b", "it's", "", "a;b", "--header=x:(a|b)"] {
            assert_eq!(commands(&quoted(word)).concat(), [word], "{}", quoted(word));
        }
        assert_eq!(quoted("--model-repository=/models"), "--model-repository=/models");
    }
}

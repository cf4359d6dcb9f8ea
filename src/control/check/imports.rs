//! The modules that a Python file imports, by its lines: `import` and `from … import` statements outside of texts and
//! comments. Nothing is run, so imports by name (`importlib`) are not seen. Pure.

/// A module that a file imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedModule {
    /// Its first name: `cv2`, `google` of `google.protobuf`.
    pub name: String,
    /// The whole name, as it is written.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// True within a function, a condition or a `try`: the file may be imported without it.
    pub is_conditional: bool,
}

/// Returns the modules that a file imports, each once; an unconditional import goes before others. Relative imports are of
/// files beside it and are left out.
pub fn imports(source: &str) -> Vec<ImportedModule> {
    let mut found: Vec<ImportedModule> = Vec::new();
    let mut text: Option<&'static str> = None;
    let mut goes_on = false;
    for (index, line) in source.lines().enumerate() {
        let was_outside = text.is_none();
        let code = without_texts(line, &mut text);
        let is_statement = was_outside && !goes_on;
        goes_on = text.is_none() && code.trim_end().ends_with('\\');
        if !is_statement {
            continue;
        }
        let is_conditional = code.starts_with([' ', '\t']);
        for statement in code.split(';') {
            for path in modules(statement.trim()) {
                let name = path.split('.').next().unwrap_or_default().to_owned();
                add(&mut found, ImportedModule { name, path, line: index + 1, is_conditional });
            }
        }
    }
    found
}

fn add(found: &mut Vec<ImportedModule>, new: ImportedModule) {
    match found.iter_mut().find(|known| known.name == new.name) {
        Some(known) if known.is_conditional && !new.is_conditional => *known = new,
        Some(_) => {}
        None => found.push(new),
    }
}

/// The modules of a statement; empty if it is no import.
fn modules(statement: &str) -> Vec<String> {
    let is_name = |name: &&str| {
        name.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '.')
    };
    let first_word = |text: &str| text.split_whitespace().next().map(str::to_owned).unwrap_or_default();
    if let Some(rest) = keyword(statement, "from") {
        let has_import = rest.split_whitespace().nth(1).is_some_and(|word| word.starts_with("import"));
        let module = first_word(rest);
        return Some(module).filter(|module| has_import && is_name(&module.as_str())).into_iter().collect();
    }
    let Some(rest) = keyword(statement, "import") else { return Vec::new() };
    let names = rest.split(',').map(|part| first_word(part.trim_end_matches('\\')));
    names.filter(|name| is_name(&name.as_str())).collect()
}

/// The text behind a keyword.
fn keyword<'a>(statement: &'a str, word: &str) -> Option<&'a str> {
    statement.strip_prefix(word).filter(|rest| rest.starts_with([' ', '\t'])).map(str::trim)
}

/// A line without its comment and the contents of its texts. `text` is the mark of a text of several lines that is open.
fn without_texts(line: &str, text: &mut Option<&'static str>) -> String {
    let mut code = String::new();
    let mut rest = line;
    while let Some(letter) = rest.chars().next() {
        if let Some(mark) = *text {
            match rest.split_once(mark) {
                Some((_, behind)) => (*text, rest) = (None, behind),
                None => return code,
            }
            continue;
        }
        if letter == '#' {
            return code;
        }
        if let Some(mark) = ["\"\"\"", "'''"].into_iter().find(|mark| rest.starts_with(mark)) {
            *text = Some(mark);
            code.push('"');
            rest = rest.get(mark.len()..).unwrap_or_default();
            continue;
        }
        if letter == '"' || letter == '\'' {
            rest = behind_text(rest, letter);
            code.push('"');
            continue;
        }
        code.push(letter);
        rest = rest.get(letter.len_utf8()..).unwrap_or_default();
    }
    code
}

/// The rest of a line behind a text that begins it.
fn behind_text(line: &str, quote: char) -> &str {
    let mut is_escaped = false;
    for (at, letter) in line.char_indices().skip(1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if letter == quote => return line.get(at + 1..).unwrap_or_default(),
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_found_and_texts_and_comments_are_not() {
        let check = |source: &str, want: &str| {
            let told = |module: &ImportedModule| {
                format!("{}{}@{}", if module.is_conditional { "?" } else { "" }, module.path, module.line)
            };
            let got: Vec<_> = imports(source).iter().map(told).collect();
            assert_eq!(got.join(" "), want, "{source:?}");
        };
        check("import numpy as np\nimport os, sys as s", "numpy@1 os@2 sys@2");
        check(
            "from transformers import AutoTokenizer # import x\nfrom a.b.c import (d,\n  e)",
            "transformers@1 a.b.c@2",
        );
        check("import torch; import cv2\nimport torch.nn.functional as F", "torch@1 cv2@1");
        check("from . import x\nfrom .y import z\nfrom .. import w", "");
        check("try:\n    import cupy\nexcept ImportError:\n    cupy = None\nimport cupy", "cupy@5");
        check("class A:\n\tdef initialize(self):\n\t\timport torch", "?torch@3");
        check("\"\"\"A text\nimport no\n\"\"\"\nimport yes", "yes@4");
        check("a = '''\nimport no''' ; import yes", "");
        check("a = 'import no'\nb = \"it's\" # '''\nimport yes", "yes@3");
        check("x = \"a\\\"\"\"\"\nimport yes", "yes@2");
        check("import a, \\\n    b\nimport c", "a@1 c@3");
        check("important = 1\nfrom_ = 2\nfrom x y\nimport\nimport 1a", "");
        check("", "");
    }
}

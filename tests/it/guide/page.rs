//! A page of the guide as steps: its blocks, and the output that they show. Pure.
//!
//! In a block `console` a line that begins with `$ ` is a command, and the lines below it are its output. A block `python`
//! is a program, and a block `text` right behind it its output. A block below `<!-- file: PATH -->` is that file. All other
//! blocks are only shown.

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A line of the shell, or several joined by `\`.
    Command { line: usize, text: String, output: Vec<String> },
    /// A file to write.
    File { line: usize, path: String, text: String },
    /// A program in Python.
    Program { line: usize, text: String, output: Vec<String> },
}

impl Step {
    /// The line of the page that it stands on, from 1.
    pub fn line(&self) -> usize {
        match self {
            Self::Command { line, .. } | Self::File { line, .. } | Self::Program { line, .. } => *line,
        }
    }

    /// Its expected output; empty if the page shows no output.
    pub fn output(&self) -> &[String] {
        match self {
            Self::Command { output, .. } | Self::Program { output, .. } => output,
            Self::File { .. } => &[],
        }
    }
}

/// A fenced block, with the line that it begins on and the text line before it.
struct Block<'a> {
    language: &'a str,
    line: usize,
    before: &'a str,
    lines: Vec<&'a str>,
}

/// All steps of a page, in their order.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut is_behind_program = false;
    for block in blocks(page) {
        let file = block.before.strip_prefix("<!-- file: ").and_then(|rest| rest.strip_suffix(" -->"));
        let line = block.line;
        let text = block.lines.join("\n");
        match (file, block.language) {
            (Some(path), _) => steps.push(Step::File { line, path: path.to_owned(), text: text + "\n" }),
            (None, "console") => commands(&block, &mut steps),
            (None, "python") => steps.push(Step::Program { line, text, output: Vec::new() }),
            (None, "text") if is_behind_program => {
                if let Some(Step::Program { output, .. }) = steps.last_mut() {
                    output.extend(block.lines.iter().map(|line| (*line).to_owned()));
                }
            }
            _ => {}
        }
        is_behind_program = file.is_none() && block.language == "python";
    }
    steps
}

/// The commands of a block `console`. Lines before the first are ignored.
fn commands(block: &Block<'_>, steps: &mut Vec<Step>) {
    let mut goes_on = false;
    for (index, text) in block.lines.iter().enumerate() {
        let is_first = text.starts_with("$ ") && !goes_on;
        let part = if is_first { text.trim_start_matches("$ ") } else { text };
        if is_first {
            let line = block.line + 1 + index;
            steps.push(Step::Command { line, text: part.to_owned(), output: Vec::new() });
        } else if let Some(Step::Command { text: command, output, .. }) = steps.last_mut() {
            if goes_on {
                command.push('\n');
                command.push_str(part);
            } else {
                output.push((*text).to_owned());
            }
        }
        goes_on = (is_first || goes_on) && part.ends_with('\\');
    }
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let (mut open, mut before) = (false, "");
    for (index, line) in page.lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(_) if open => open = false,
            Some(language) => {
                open = true;
                blocks.push(Block { language: language.trim(), line: index + 1, before, lines: Vec::new() });
            }
            None if open => {
                if let Some(block) = blocks.last_mut() {
                    block.lines.push(line);
                }
            }
            None => {}
        }
        if !open && !line.trim().is_empty() {
            before = line.trim();
        }
    }
    blocks
}

/// Returns true if lines are as expected: `…` stands for any text in a line, and alone for any number of lines. The
/// white space at ends of lines does not count.
pub fn is_as_expected(expected: &[String], lines: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return lines.is_empty() };
    if first.trim() == "…" {
        return (0..=lines.len()).any(|skipped| is_as_expected(rest, lines.get(skipped..).unwrap_or_default()));
    }
    let Some((line, behind)) = lines.split_first() else { return false };
    is_line(first.trim_end(), line.trim_end()) && is_as_expected(rest, behind)
}

fn is_line(expected: &str, line: &str) -> bool {
    match expected.split_once('…') {
        None => expected == line,
        Some((head, rest)) => line.strip_prefix(head).is_some_and(|line| {
            line.char_indices()
                .map(|(at, _)| at)
                .chain([line.len()])
                .any(|at| is_line(rest, line.get(at..).unwrap_or("")))
        }),
    }
}

#[test]
fn a_page_is_read_as_its_commands_files_and_programs() {
    let page = "Text.\n\n```console\n$ a b \\\n    --c\nout\n$ d\n```\n<!-- file: x/y.toml -->\n```toml\nk = 1\n```\n\
                ```python\nprint(1)\n```\n\n```text\n1\n```\n```json\n{}\n```\n";
    let text = |step: &Step| match step {
        Step::Command { text, .. } | Step::Program { text, .. } => text.clone(),
        Step::File { path, text, .. } => format!("{path}: {text}"),
    };
    let got: Vec<_> = steps(page).iter().map(|step| (step.line(), text(step), step.output().join("|"))).collect();
    let want = [(4, "a b \\\n    --c", "out"), (7, "d", ""), (10, "x/y.toml: k = 1\n", ""), (13, "print(1)", "1")];
    assert_eq!(got, want.map(|(line, text, output)| (line, text.to_owned(), output.to_owned())));
}

#[test]
fn an_ellipsis_stands_for_any_text_and_alone_for_any_lines() {
    let check = |expected: &str, got: &str, want: bool| {
        let expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        assert_eq!(is_as_expected(&expected, &got.lines().collect::<Vec<_>>()), want, "{expected:?} {got:?}");
    };
    check("a\nb", "a\nb  ", true);
    check("a\nb", "a", false);
    check("a\nb", "a\nb\nc", false);
    check("a\n…", "a\nb\nc", true);
    check("…\nc", "a\nb\nc", true);
    check("…\nc", "a\nb", false);
    check("in … ms", "in 14 ms", true);
    check("in … ms, … models", "in 14 ms, 2 model", false);
    check("…,…x", "é,yx", true);
}

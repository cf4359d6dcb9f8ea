//! A Dockerfile that builds from tritonserver's image: its packages, the paths that it copies, and the server's command;
//! and the same file with another image and another program. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::deployment::{Deployment, PathMapping, command, shell};

/// One instruction, its continuation lines joined.
struct Instruction<'a> {
    /// The keyword in capitals.
    keyword: String,
    /// The text behind it.
    argument: String,
    /// Its lines as they are written.
    lines: Vec<&'a str>,
}

/// Returns true if a text has the form of a Dockerfile.
pub fn is_dockerfile(text: &str) -> bool {
    let instructions = instructions(text);
    let mut keywords = instructions.iter().map(|instruction| instruction.keyword.as_str());
    keywords.find(|keyword| !["", "ARG"].contains(keyword)) == Some("FROM")
}

/// Reads the last stage of a Dockerfile.
pub fn read(text: &str) -> Deployment {
    let mut stages: Vec<(String, BuildStage)> = Vec::new();
    let mut arguments = BTreeMap::new();
    for instruction in instructions(text) {
        let argument = expand(&instruction.argument, &arguments);
        match instruction.keyword.as_str() {
            "FROM" => stages.push(begin(&argument, &stages)),
            "ARG" => {
                drop(argument.split_once('=').map(|(name, value)| arguments.insert(name.to_owned(), unquoted(value))))
            }
            keyword => {
                if let Some((_, stage)) = stages.last_mut() {
                    stage.add(keyword, &argument, &mut arguments);
                }
            }
        }
    }
    let Some((_, stage)) = stages.pop() else { return Deployment::default() };
    stage.end()
}

/// A stage of the build.
#[derive(Clone, Default)]
struct BuildStage {
    deployment: Deployment,
    directory: String,
    entry_point: Vec<String>,
    command: Vec<String>,
}

/// Begins a stage: on an image, or where an earlier one ended.
fn begin(argument: &str, stages: &[(String, BuildStage)]) -> (String, BuildStage) {
    let mut words = argument.split_whitespace().filter(|word| !word.starts_with("--"));
    let image = words.next().unwrap_or_default();
    let name = words.nth(1).unwrap_or_default().to_owned();
    let earlier = stages.iter().find(|(known, _)| known == image).map(|(_, stage)| stage.clone());
    let on_image = || BuildStage {
        deployment: Deployment { image: Some(image.to_owned()), ..Deployment::default() },
        ..BuildStage::default()
    };
    (name, earlier.unwrap_or_else(on_image))
}

impl BuildStage {
    fn add(&mut self, keyword: &str, argument: &str, arguments: &mut BTreeMap<String, String>) {
        match keyword {
            "ADD" | "COPY" => self.copy(argument),
            "CMD" => self.command = exec_form(argument),
            "ENTRYPOINT" => (self.entry_point, self.command) = (exec_form(argument), Vec::new()),
            "ENV" => {
                for (name, value) in variables(argument) {
                    arguments.insert(name.clone(), value.clone());
                    self.deployment.variables.push((name, value));
                }
            }
            "RUN" => shell::commands(argument).iter().for_each(|words| install(&mut self.deployment, words)),
            "WORKDIR" => self.directory = beneath(&self.directory, argument),
            _ => {}
        }
    }

    fn copy(&mut self, argument: &str) {
        let words = if argument.trim_start().starts_with('[') {
            exec_form(argument)
        } else {
            argument.split_whitespace().map(str::to_owned).collect()
        };
        // Files of another stage or image are not beside the Dockerfile.
        if words.iter().any(|word| word.starts_with("--from")) {
            return;
        }
        let paths: Vec<_> = words.into_iter().filter(|word| !word.starts_with("--")).collect();
        let Some((to, from)) = paths.split_last() else { return };
        let container = beneath(&self.directory, to);
        self.deployment.paths.extend(from.iter().map(|host| {
            let host = host.trim_start_matches('/').trim_end_matches("/*").to_owned();
            PathMapping { host: if host.is_empty() { ".".to_owned() } else { host }, container: container.clone() }
        }));
    }

    fn end(self) -> Deployment {
        let Self { mut deployment, entry_point, command, .. } = self;
        // Triton's own entry point runs the command.
        let words = [entry_point, command].concat();
        if !words.is_empty() {
            command::add(&mut deployment, &words);
            if deployment.command.is_none() {
                deployment.notes.push(format!(
                    "its command '{}' is not read: give the command line of tritonserver behind --",
                    words.join(" ")
                ));
            }
        }
        deployment
    }
}

/// The words of `["a", "b"]`, or those of a shell.
fn exec_form(argument: &str) -> Vec<String> {
    let argument = argument.trim();
    let Some(list) = argument.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        // The whole text, if several commands are run one after the other.
        return match <[_; 1]>::try_from(shell::commands(argument)) {
            Ok([only]) => only,
            Err(_) => ["sh", "-c", argument].map(str::to_owned).to_vec(),
        };
    };
    json_strings(list)
}

/// The texts of a list in JSON.
fn json_strings(list: &str) -> Vec<String> {
    let (mut found, mut open): (Vec<String>, Option<String>) = (Vec::new(), None);
    let mut letters = list.chars();
    while let Some(letter) = letters.next() {
        match (&mut open, letter) {
            (Some(_), '"') => found.extend(open.take()),
            (Some(text), '\\') => text.extend(letters.next()),
            (Some(text), _) => text.push(letter),
            (None, '"') => open = Some(String::new()),
            (None, _) => {}
        }
    }
    found
}

/// Reads `A=b C="d e"`, or `A b`.
fn variables(argument: &str) -> Vec<(String, String)> {
    let words = shell::commands(argument).concat();
    match words.first() {
        Some(first) if !first.contains('=') => {
            vec![(first.clone(), words.get(1..).unwrap_or_default().join(" "))]
        }
        _ => words.iter().filter_map(|word| word.split_once('=')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
    }
}

/// Adds the packages that a command installs.
fn install(deployment: &mut Deployment, words: &[String]) {
    let Some(at) = words.iter().position(|word| word == "install") else { return };
    let (before, behind) = (words.get(..at).unwrap_or_default(), words.get(at + 1..).unwrap_or_default());
    let is_program = |name: &str| before.iter().any(|word| word.rsplit('/').next() == Some(name));
    if ["apt", "apt-get", "microdnf", "yum"].into_iter().any(is_program) {
        let packages = behind.iter().filter(|word| !word.starts_with('-'));
        deployment.system_packages.extend(packages.cloned());
        return;
    }
    let is_pip =
        |word: &String| word.rsplit('/').next().is_some_and(|name| name.starts_with("pip") && !name.contains('.'));
    if before.iter().any(is_pip) {
        pip(deployment, behind);
    }
}

/// Adds the packages and the files of requirements of `pip install`.
fn pip(deployment: &mut Deployment, words: &[String]) {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (option, joined) =
            word.split_once('=').map_or((word.as_str(), None), |(option, value)| (option, Some(value)));
        match option {
            "-r" | "--requirement" => {
                let file = joined.map(str::to_owned).or_else(|| words.next().cloned());
                deployment.requirement_files.extend(file);
            }
            _ if PIP_VALUES.contains(&option) => {
                if joined.is_none() {
                    words.next();
                }
            }
            _ if word.starts_with('-') => {}
            _ => deployment.packages.push(word.clone()),
        }
    }
}

/// Options of pip that take a value.
const PIP_VALUES: [&str; 14] = [
    "--constraint",
    "--extra-index-url",
    "--find-links",
    "--index-url",
    "--platform",
    "--progress-bar",
    "--root-user-action",
    "--target",
    "--timeout",
    "--trusted-host",
    "-c",
    "-f",
    "-i",
    "-t",
];

/// A path of the container, from its working directory.
fn beneath(directory: &str, path: &str) -> String {
    let path = path.trim().trim_end_matches('/');
    match path.strip_prefix("./").unwrap_or(path) {
        "" | "." => {
            if directory.is_empty() {
                "/".to_owned()
            } else {
                directory.to_owned()
            }
        }
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{path}", directory.trim_end_matches('/')),
    }
}

/// Replaces `$NAME` and `${NAME}` by the values of `ARG` and `ENV`, and `${NAME:-value}` by that value.
fn expand(text: &str, arguments: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        expanded.push_str(before);
        let is_inner = |letter: char| letter.is_alphanumeric() || letter == '_';
        let (whole, name, after) = match behind.strip_prefix('{').and_then(|behind| behind.split_once('}')) {
            Some((name, after)) => (format!("${{{name}}}"), name, after),
            None => {
                let end = behind.find(|letter| !is_inner(letter)).unwrap_or(behind.len());
                let (name, after) = behind.split_at(end);
                (format!("${name}"), name, after)
            }
        };
        let (name, fallback) = name.split_once(":-").map_or((name, None), |(name, value)| (name, Some(value)));
        match arguments.get(name).map(String::as_str).or(fallback) {
            Some(value) => expanded.push_str(value),
            None => expanded.push_str(&whole),
        }
        rest = after;
    }
    expanded.push_str(rest);
    expanded
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches(['"', '\'']).to_owned()
}

/// The instructions of a file. Comments and empty lines are instructions without a keyword.
fn instructions(text: &str) -> Vec<Instruction<'_>> {
    let mut found: Vec<Instruction<'_>> = Vec::new();
    let (mut goes_on, mut end_word) = (false, None);
    for line in text.lines() {
        let trimmed = line.trim();
        if let (Some(word), Some(last)) = (end_word.as_deref(), found.last_mut()) {
            last.lines.push(line);
            let is_end = trimmed == word;
            if is_end {
                end_word = None;
            } else {
                let _ = write!(last.argument, "\n{line}");
            }
            continue;
        }
        if trimmed.is_empty() || trimmed.starts_with('#') {
            match found.last_mut().filter(|_| goes_on) {
                Some(last) => last.lines.push(line),
                None => found.push(Instruction { keyword: String::new(), argument: String::new(), lines: vec![line] }),
            }
            continue;
        }
        let part = trimmed.strip_suffix('\\').unwrap_or(trimmed);
        if goes_on && let Some(last) = found.last_mut() {
            let _ = write!(last.argument, " {}", part.trim());
            last.lines.push(line);
        } else {
            let (keyword, argument) = part.split_once(char::is_whitespace).unwrap_or((part, ""));
            let (keyword, argument) = (keyword.to_ascii_uppercase(), argument.trim().to_owned());
            end_word = here_document(&keyword, &argument);
            found.push(Instruction { keyword, argument, lines: vec![line] });
        }
        goes_on = trimmed.ends_with('\\');
    }
    found
}

/// The word that ends the lines of `RUN <<EOF`.
fn here_document(keyword: &str, argument: &str) -> Option<String> {
    let (_, word) = argument.split_once("<<").filter(|_| ["COPY", "RUN"].contains(&keyword))?;
    let word = word.trim_start_matches('-').trim_matches(['"', '\'']);
    word.split_whitespace().next().map(str::to_owned)
}

/// The parts of a Dockerfile for this server that replace those of Triton's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewImage {
    /// The image that it builds from.
    pub base: String,
    /// The instruction that adds the program.
    pub program: String,
    /// Packages of Python that Triton's image has, or models import, and the file does not install.
    pub packages: Vec<String>,
    /// The words of the server's command.
    pub command: Vec<String>,
}

/// Returns a Dockerfile for this server: the same lines, with another image, the program, the missing packages, and another
/// command.
pub fn rewritten(text: &str, new: &NewImage) -> String {
    let mut arguments = BTreeMap::new();
    let (mut lines, mut has_command) = (Vec::new(), false);
    for instruction in instructions(text) {
        let argument = expand(&instruction.argument, &arguments);
        let is_server = argument.contains("tritonserver");
        match instruction.keyword.as_str() {
            "ARG" => {
                let set = argument.split_once('=').map(|(name, value)| (name.to_owned(), unquoted(value)));
                arguments.extend(set);
                lines.extend(instruction.lines.iter().map(|line| (*line).to_owned()));
            }
            "FROM" if is_server => {
                let mut words = argument.split_whitespace().filter(|word| !word.starts_with("--")).skip(1);
                let stage = words.nth(1).map_or_else(String::new, |name| format!(" AS {name}"));
                lines.push(format!("FROM {}{stage}", new.base));
                lines.push(new.program.clone());
                lines.extend(pip_line(&new.packages));
            }
            // The entry point of Triton's image only prints a banner.
            "ENTRYPOINT" | "CMD" if is_server => {
                if !has_command {
                    lines.push(command_line(&new.command));
                }
                has_command = true;
            }
            _ => lines.extend(instruction.lines.iter().map(|line| (*line).to_owned())),
        }
    }
    if !has_command {
        lines.push(command_line(&new.command));
    }
    lines.join("\n") + "\n"
}

/// Returns a Dockerfile for a deployment that has none: a command line alone, and where its paths come from.
pub fn written(deployment: &Deployment, new: &NewImage) -> String {
    let mut lines = vec![format!("FROM {}", new.base), new.program.clone()];
    lines.extend(pip_line(&new.packages));
    lines.extend(deployment.variables.iter().map(|(name, value)| format!("ENV {name}={}", shell::quoted(value))));
    lines.extend(deployment.paths.iter().map(|path| {
        let host = path.host.strip_prefix("./").unwrap_or(&path.host);
        format!("COPY {host} {}", path.container)
    }));
    lines.push(command_line(&new.command));
    lines.join("\n") + "\n"
}

fn pip_line(packages: &[String]) -> Option<String> {
    let words: Vec<_> = packages.iter().map(|package| shell::quoted(package)).collect();
    (!words.is_empty()).then(|| format!("RUN pip install --no-cache-dir {}", words.join(" ")))
}

fn command_line(words: &[String]) -> String {
    let escaped = |word: &String| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""));
    format!("CMD [{}]", words.iter().map(escaped).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# syntax=docker/dockerfile:1\nARG VERSION=24.01\nFROM nvcr.io/nvidia/tritonserver:${VERSION}-py3\n\n\
        RUN apt-get update && apt-get install -y --no-install-recommends ffmpeg libsndfile1 \\\n    && rm -rf /var/lib/apt\n\
        # packages\nRUN pip install --no-cache-dir --extra-index-url https://x/whl \\\n    'torch==2.1.0' transformers[torch] \\\n    \
        # and one more\n    pillow\nWORKDIR /app\nCOPY --chown=1:1 requirements.txt ./\nRUN python3 -m pip install -r requirements.txt\n\
        COPY model_repository/ /models\nENV HF_HOME=/cache A=\"b c\"\nENV OLD one\n\
        CMD [\"tritonserver\", \"--model-repository=/models\", \"--log-verbose=1\"]\n";

    fn paths(read: &Deployment) -> Vec<String> {
        read.paths.iter().map(|path| format!("{}>{}", path.host, path.container)).collect()
    }

    #[test]
    fn packages_paths_variables_and_the_command_are_read() {
        assert!(is_dockerfile(FILE) && !is_dockerfile("services:\n  a:\n") && !is_dockerfile(""));
        let read = read(FILE);
        assert_eq!(read.image.as_deref(), Some("nvcr.io/nvidia/tritonserver:24.01-py3"));
        assert_eq!(read.packages, ["torch==2.1.0", "transformers[torch]", "pillow"]);
        assert_eq!(read.requirement_files, ["requirements.txt"]);
        assert_eq!(read.system_packages, ["ffmpeg", "libsndfile1"]);
        assert_eq!(paths(&read), ["requirements.txt>/app", "model_repository/>/models"]);
        let variables: Vec<_> = read.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(variables, ["HF_HOME=/cache", "A=b c", "OLD=one"]);
        assert_eq!(read.command.unwrap(), ["--model-repository=/models", "--log-verbose=1"]);
    }

    #[test]
    fn the_command_is_found_in_each_form_and_a_script_is_told() {
        let check = |tail: &str, want: Option<&str>| {
            let read = read(&format!("FROM nvcr.io/nvidia/tritonserver:24.01-py3\n{tail}"));
            assert_eq!(read.command.map(|words| words.join(" ")).as_deref(), want, "{tail}");
            assert_eq!(read.notes.len(), usize::from(want.is_none() && !tail.is_empty()), "{tail}");
        };
        check("CMD tritonserver --model-repository /m", Some("--model-repository /m"));
        check("ENTRYPOINT [\"tritonserver\"]\nCMD [\"--id=x\"]", Some("--id=x"));
        check("ENTRYPOINT [\"sh\", \"-c\", \"tritonserver --id=x\"]", Some("--id=x"));
        check("CMD cd /m && tritonserver --id=x", Some("--id=x"));
        check("CMD [\"./start.sh\"]", None);
        check("", None);
    }

    #[test]
    fn a_list_may_have_commas_and_quotes_in_its_texts() {
        assert_eq!(json_strings(r#""a,b", "c \"d\"","e""#), ["a,b", "c \"d\"", "e"]);
    }

    #[test]
    fn stages_build_on_one_another_and_files_of_others_are_not_beside_the_file() {
        let text = "FROM python:3.10 AS export\nRUN pip install torch\nFROM nvcr.io/nvidia/tritonserver:24.01-py3 as base\n\
            RUN pip3 install numpy\nFROM base\nCOPY --from=export /m /models/m\nCOPY [\"more\", \"/models/more\"]\nCOPY . .\n\
            RUN <<EOF\nset -e\nuv pip install scipy\nEOF\nCMD [\"tritonserver\"]\n";
        let read = read(text);
        assert_eq!(read.packages, ["numpy", "scipy"]);
        assert_eq!(paths(&read), ["more>/models/more", ".>/"]);
        assert_eq!(read.image.as_deref(), Some("nvcr.io/nvidia/tritonserver:24.01-py3"));
        assert_eq!(read.command, Some(Vec::new()));
    }

    #[test]
    fn a_rewritten_file_keeps_all_lines_but_image_and_command() {
        let new = NewImage {
            base: "python:3.12-slim".to_owned(),
            program: "COPY --from=deuteron /d /d".to_owned(),
            packages: vec!["numpy".to_owned()],
            command: vec!["deuteron".to_owned(), "serve".to_owned(), "/models".to_owned()],
        };
        let text = rewritten(FILE, &new);
        let want = "ARG VERSION=24.01\nFROM python:3.12-slim\nCOPY --from=deuteron /d /d\nRUN pip install --no-cache-dir numpy\n\n\
                    RUN apt-get update";
        assert!(text.contains(want), "{text}");
        assert!(text.ends_with("ENV OLD one\nCMD [\"deuteron\", \"serve\", \"/models\"]\n"), "{text}");
        assert!(text.contains("    'torch==2.1.0' transformers[torch] \\\n    # and one more\n    pillow\n"), "{text}");
        assert!(!text.contains("tritonserver"), "{text}");
        let staged = rewritten("FROM nvcr.io/nvidia/tritonserver:1 AS a\nFROM a\nCMD [\"x\"]\n", &new);
        let want = "FROM python:3.12-slim AS a\nCOPY --from=deuteron /d /d\nRUN pip install --no-cache-dir numpy\nFROM a\nCMD [\"x\"]\n\
                    CMD [\"deuteron\", \"serve\", \"/models\"]\n";
        assert_eq!(staged, want);
    }

    #[test]
    fn a_file_is_written_for_a_command_line() {
        let path = PathMapping { host: "./models".to_owned(), container: "/models".to_owned() };
        let variables = vec![("A".to_owned(), "b c".to_owned())];
        let deployment = Deployment { paths: vec![path], variables, ..Deployment::default() };
        let new = NewImage { base: "x".to_owned(), program: "COPY p p".to_owned(), ..NewImage::default() };
        assert_eq!(written(&deployment, &new), "FROM x\nCOPY p p\nENV A='b c'\nCOPY models /models\nCMD []\n");
    }
}

//! The service of a compose file that runs tritonserver: its image, its command, its volumes and its variables. A reader
//! of lines, for the usual layout of these files; anchors and merges are not followed. Pure.

use crate::deployment::{Deployment, command, shell};

/// Returns true if a text has the form of a compose file.
pub fn is_compose(text: &str) -> bool {
    text.lines().any(|line| line.trim_end() == "services:")
}

/// Reads the first service whose image or command names tritonserver.
pub fn read(text: &str) -> Deployment {
    let services = services(text);
    let of_triton = services.iter().find(|lines| lines.iter().any(|(_, line)| line.contains("tritonserver")));
    of_triton.map_or_else(Deployment::default, |lines| service(lines))
}

/// The lines of each service, with their indents.
fn services(text: &str) -> Vec<Vec<(usize, &str)>> {
    let lines = text.lines().map(|line| (line.len() - line.trim_start().len(), line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let beneath = lines.skip_while(|(_, line)| *line != "services:").skip(1).take_while(|(indent, _)| *indent > 0);
    let mut found: Vec<Vec<(usize, &str)>> = Vec::new();
    let mut depth = None;
    for (indent, line) in beneath {
        if indent <= *depth.get_or_insert(indent) {
            found.push(Vec::new());
        } else if let Some(last) = found.last_mut() {
            last.push((indent, line));
        }
    }
    found
}

fn service(lines: &[(usize, &str)]) -> Deployment {
    let mut deployment = Deployment { image: value(lines, "image").into_iter().next(), ..Deployment::default() };
    deployment.paths = value(lines, "volumes").iter().filter_map(|text| command::volume(text)).collect();
    for text in value(lines, "environment") {
        let text = text.split_once(": ").map_or_else(|| text.clone(), |(name, value)| format!("{name}={value}"));
        command::add_variable(&mut deployment, &text);
    }
    let words = [value(lines, "entrypoint"), value(lines, "command")].concat();
    command::add(&mut deployment, &words);
    let is_flags = words.first().is_some_and(|word| word.starts_with("--"));
    if deployment.command.is_none() && is_flags {
        deployment.command = Some(words);
    }
    deployment
}

/// The value of a key as words: of a text, of a list in brackets, or of the lines beneath it.
fn value(lines: &[(usize, &str)], key: &str) -> Vec<String> {
    let prefix = format!("{key}:");
    let Some(at) = lines.iter().position(|(_, line)| line.starts_with(&prefix)) else { return Vec::new() };
    let Some((indent, line)) = lines.get(at) else { return Vec::new() };
    let inline = line.get(prefix.len()..).unwrap_or_default().trim();
    if let Some(list) = inline.strip_prefix('[') {
        let rest = lines.iter().skip(at + 1).map(|(_, line)| *line);
        // The list may go on for lines.
        let whole: Vec<&str> = std::iter::once(list).chain(rest).collect();
        let whole = whole.join(" ");
        let list = whole.split(']').next().unwrap_or_default();
        return list.split(',').map(unquoted).filter(|word| !word.is_empty()).collect();
    }
    if !inline.is_empty() && !inline.starts_with(['>', '|']) {
        return if key == "image" { vec![unquoted(inline)] } else { shell::commands(inline).concat() };
    }
    // An item of a list may be as far to the left as its key.
    let is_beneath = |(depth, line): &&(usize, &str)| *depth > *indent || (*depth == *indent && line.starts_with("- "));
    let beneath: Vec<&str> = lines.iter().skip(at + 1).take_while(is_beneath).map(|(_, line)| *line).collect();
    match beneath.iter().all(|line| line.starts_with("- ")) {
        true => beneath.iter().map(|line| unquoted(line.trim_start_matches("- "))).collect(),
        false if inline.is_empty() => beneath.iter().map(|line| unquoted_value(line)).collect(),
        false => shell::commands(&beneath.join(" ")).concat(),
    }
}

/// `NAME: "value"` without the quotes.
fn unquoted_value(line: &str) -> String {
    line.split_once(": ").map_or_else(|| unquoted(line), |(name, value)| format!("{name}: {}", unquoted(value)))
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        let read = read(text);
        let paths: Vec<_> = read.paths.iter().map(|path| format!("{}>{}", path.host, path.container)).collect();
        let variables: Vec<_> = read.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let command = read.command.map_or_else(|| "-".to_owned(), |words| words.join(" "));
        format!("{} {command}; {}; {}", read.image.unwrap_or_default(), paths.join(" "), variables.join(" "))
    }

    #[test]
    fn the_service_of_triton_is_read_in_each_notation() {
        let text = "version: '3'\nservices:\n  web:\n    image: nginx\n    command: nginx\n  triton:\n    image: \"nvcr.io/nvidia/tritonserver:23.10-py3\"\n    \
            # the models\n    volumes:\n      - ./models:/models:ro\n      - cache:/cache\n    environment:\n      - A=b\n    \
            command: tritonserver --model-repository=/models --id 'a b'\n    ports:\n      - 8000:8000\nvolumes:\n  cache:\n";
        assert!(is_compose(text) && !is_compose("FROM a\n"));
        let want = "nvcr.io/nvidia/tritonserver:23.10-py3 --model-repository=/models --id a b; ./models>/models; A=b";
        assert_eq!(told(text), want);
        let list = "services:\n  t:\n    image: x/tritonserver:1\n    command: [\"tritonserver\", \"--id=x\",\n      '--log-verbose=1']\n    environment:\n      \
            A: \"b\"\n";
        assert_eq!(told(list), "x/tritonserver:1 --id=x --log-verbose=1; ; A=b");
        let items = "services:\n  t:\n    image: x/tritonserver:1\n    command:\n    - tritonserver\n    - --id=x\n    volumes:\n    - /srv/m:/m\n";
        assert_eq!(told(items), "x/tritonserver:1 --id=x; /srv/m>/m; ");
        let folded = "services:\n  t:\n    build: .\n    entrypoint: tritonserver\n    command: >\n      --id=x\n      --log-verbose=1\n";
        assert_eq!(told(folded), " --id=x --log-verbose=1; ; ");
        let flags = "services:\n  t:\n    image: my/tritonserver:1\n    command: --id=x\n";
        assert_eq!(told(flags), "my/tritonserver:1 --id=x; ; ");
        assert_eq!(told("services:\n  web:\n    image: nginx\n"), " -; ; ");
    }
}

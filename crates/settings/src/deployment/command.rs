//! A command line that starts tritonserver: the program itself, within a shell's `-c`, or in a container by
//! `docker run`. Pure.

use crate::deployment::{Deployment, PathMapping, shell};

/// Adds the first command among these that starts tritonserver, or a container of it.
pub fn add_commands(deployment: &mut Deployment, commands: &[Vec<String>]) {
    for words in commands {
        if deployment.command.is_some() {
            return;
        }
        add(deployment, words);
    }
}

/// Adds one command, if it starts tritonserver.
pub fn add(deployment: &mut Deployment, words: &[String]) {
    let is_server = |word: &String| name(word) == PROGRAM;
    if let Some(at) = words.iter().position(is_server) {
        let (before, behind) = words.split_at(at);
        container(deployment, before);
        deployment.command = Some(flags(behind.get(1..).unwrap_or_default()));
        return;
    }
    if let Some(script) = script(words) {
        container(deployment, words);
        add_commands(deployment, &shell::commands(script));
        return;
    }
    // An image whose entry point is the server gets flags alone.
    if let Some(at) = container(deployment, words) {
        let behind = words.get(at + 1..).unwrap_or_default();
        if behind.first().is_some_and(|word| word.starts_with("--")) {
            deployment.command = Some(flags(behind));
        }
    }
}

/// The words of the server up to a redirection.
fn flags(words: &[String]) -> Vec<String> {
    let is_end = |word: &&String| word.starts_with('>') || word.starts_with("2>") || word.starts_with('<');
    words.iter().take_while(|word| !is_end(word)).cloned().collect()
}

/// The script of `sh -c SCRIPT`.
fn script(words: &[String]) -> Option<&str> {
    let at = words.iter().position(|word| ["sh", "bash", "dash"].contains(&name(word)))?;
    let mut behind = words.get(at + 1..)?.iter();
    // `-lc` and `-ec` take a script, too.
    behind.find(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'))?;
    behind.next().map(String::as_str)
}

/// Reads the options of `docker run` and returns the place of the image; `None` if it is another command.
fn container(deployment: &mut Deployment, words: &[String]) -> Option<usize> {
    let program = words.iter().position(|word| ENGINES.contains(&name(word)))?;
    let run = words.iter().skip(program).position(|word| word == "run" || word == "create")? + program;
    let mut at = run + 1;
    while let Some(word) = words.get(at) {
        if !word.starts_with('-') {
            deployment.image = Some(word.clone());
            return Some(at);
        }
        let (option, joined) = match word.split_once('=') {
            Some((option, value)) if word.starts_with("--") => (option, Some(value)),
            _ => (word.as_str(), None),
        };
        let takes_next = joined.is_none() && takes_value(option);
        let value = joined.or_else(|| words.get(at + 1).filter(|_| takes_next).map(String::as_str));
        let value = value.or_else(|| option.strip_prefix("-v").filter(|value| !value.is_empty() && option.len() > 2));
        match (option, value) {
            ("-e" | "--env", Some(value)) => add_variable(deployment, value),
            ("--mount", Some(value)) => deployment.paths.extend(mount(value)),
            (option, Some(value)) if option.starts_with("-v") || option == "--volume" => {
                deployment.paths.extend(volume(value));
            }
            _ => {}
        }
        at += if takes_next { 2 } else { 1 };
    }
    None
}

/// Adds `NAME=VALUE` of the environment.
pub fn add_variable(deployment: &mut Deployment, text: &str) {
    if let Some((name, value)) = text.split_once('=') {
        deployment.variables.push((name.to_owned(), value.to_owned()));
    }
}

/// Reads `HOST:CONTAINER[:ro]`; `None` for a volume without a path of the host.
pub fn volume(text: &str) -> Option<PathMapping> {
    let mut parts = text.split(':');
    let (host, container) = (parts.next()?, parts.next()?);
    is_path(host).then(|| PathMapping { host: host_path(host), container: container.to_owned() })
}

/// True for a path, and not the name of a volume.
fn is_path(text: &str) -> bool {
    text.starts_with(['.', '/', '~', '$']) || text.contains('/')
}

/// Reads `type=bind,source=HOST,target=CONTAINER`.
fn mount(text: &str) -> Option<PathMapping> {
    let value = |names: &[&str]| {
        let mut parts = text.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| names.contains(name)).map(|(_, value)| value)
    };
    let (host, container) = (value(&["source", "src"])?, value(&["target", "dst", "destination"])?);
    is_path(host).then(|| PathMapping { host: host_path(host), container: container.to_owned() })
}

/// The working directory as `.`, whichever way a script writes it.
fn host_path(text: &str) -> String {
    let here = ["${PWD}", "$PWD", "$(pwd)", "`pwd`"];
    here.iter().find_map(|here| text.strip_prefix(here)).map_or_else(|| text.to_owned(), |rest| format!(".{rest}"))
}

/// True for an option of `docker run` that takes the next word.
fn takes_value(option: &str) -> bool {
    if option.starts_with("--") {
        return !SWITCHES.contains(&option);
    }
    // Short switches may be joined, as in `-it`; the last letter decides.
    option.len() == 2 && option.ends_with(['a', 'c', 'e', 'h', 'l', 'm', 'p', 'u', 'v', 'w'])
        || (option.len() > 2
            && option.chars().skip(1).all(|letter| "ditPqvp".contains(letter))
            && option.ends_with(['v', 'p']))
}

/// The last part of a path.
fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The program whose command lines are read.
const PROGRAM: &str = "tritonserver";

/// Programs that run a container.
const ENGINES: [&str; 4] = ["docker", "nerdctl", "nvidia-docker", "podman"];

/// The options of `docker run` without a value.
const SWITCHES: [&str; 10] = [
    "--detach",
    "--init",
    "--interactive",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--privileged",
    "--publish-all",
    "--quiet",
    "--read-only",
    "--rm",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Deployment {
        let mut deployment = Deployment::default();
        add_commands(&mut deployment, &shell::commands(text));
        deployment
    }

    #[test]
    fn the_servers_words_are_found_in_each_form() {
        let check = |text: &str, want: Option<&str>| {
            assert_eq!(read(text).command.map(|words| words.join(" ")).as_deref(), want, "{text}");
        };
        check("tritonserver --model-repository=/models", Some("--model-repository=/models"));
        check("/opt/tritonserver/bin/tritonserver --log-verbose 1 > log 2>&1", Some("--log-verbose 1"));
        check("set -e\nexport A=b\nCUDA_VISIBLE_DEVICES=0 exec tritonserver --id=x \"$@\" &", Some("--id=x $@"));
        check("bash -lc 'pip install a && tritonserver --id=x'", Some("--id=x"));
        check("mpirun -n 1 tritonserver --id=x", Some("--id=x"));
        check("docker run --rm nvcr.io/nvidia/tritonserver:24.01-py3 tritonserver --id=x", Some("--id=x"));
        check("docker run --rm -it own/image:1 --model-repository=/m", Some("--model-repository=/m"));
        check("docker run --rm own/image:1", None);
        check("docker run --rm own/image:1 sh -c 'tritonserver --id=x'", Some("--id=x"));
        check("docker build .", None);
        check("echo tritonserver:1", None);
    }

    #[test]
    fn the_options_of_a_container_give_image_paths_and_variables() {
        let text = "docker run --gpus=1 --rm -it --shm-size 1g -p8000:8000 -p 8001:8001 --net=host --ulimit memlock=-1 \\\n \
                    -v${PWD}/models:/models:ro -v named:/cache --volume $(pwd)/more:/more -e A=b --env C=d \\\n \
                    --mount type=bind,source=/srv/x,target=/x nvcr.io/nvidia/tritonserver:23.10-py3 \\\n \
                    tritonserver --model-repository=/models";
        let read = read(text);
        let paths: Vec<_> = read.paths.iter().map(|path| format!("{}>{}", path.host, path.container)).collect();
        assert_eq!(paths, ["./models>/models", "./more>/more", "/srv/x>/x"]);
        assert_eq!(read.image.as_deref(), Some("nvcr.io/nvidia/tritonserver:23.10-py3"));
        assert_eq!(read.variables, [("A", "b"), ("C", "d")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}

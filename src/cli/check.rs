//! The command line of `deuteron check`: paths and flags of a server, files of a deployment, and a command line of
//! tritonserver behind `--`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use crate::cli::Environment;
use crate::settings;
use crate::settings::deployment::{
    CheckOrder, Deployment, PathMapping, ReadDeployment, is_deployment_name, read_flags, requirements,
};

const JSON: &str = "json";
const WORDS: &str = "COMMAND";

/// The arguments beside those of the server.
pub(super) fn arguments() -> [Arg; 2] {
    let json = Arg::new(JSON).long(JSON).action(ArgAction::SetTrue).help("Print the report in JSON");
    let words = Arg::new(WORDS).last(true).num_args(0..).allow_hyphen_values(true);
    let words = words.value_parser(value_parser!(OsString));
    [json, words.help("A command line of tritonserver or `docker run`, in quotes or word by word")]
}

/// Returns the request.
pub(super) fn read(matches: &ArgMatches, environment: Environment) -> Result<CheckOrder, String> {
    let is_json = matches.get_flag(JSON);
    let mut read: Option<ReadDeployment> = None;
    let mut add = |deployment: Deployment, dockerfile: Option<String>| {
        let before = read.take().unwrap_or_default();
        let joined = ReadDeployment {
            deployment: before.deployment.joined(deployment),
            flags: Vec::new(),
            dockerfile: dockerfile.or(before.dockerfile),
        };
        read = Some(joined);
    };
    let is_file = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(is_deployment_name)
            && (environment.read_file)(path).is_ok()
    };
    for path in settings::repositories(matches).iter().filter(|path| is_file(path)) {
        let text = (environment.read_file)(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let dockerfile = Deployment::is_dockerfile(&text).then(|| text.clone());
        add(of_file(path, &text, environment), dockerfile);
    }
    if let Some(words) = matches.get_many::<OsString>(WORDS) {
        let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        add(Deployment::of_words(&words), None);
    }
    let Some(mut read) = read else {
        let settings = settings::read(matches, environment.variables, environment.read_file)?;
        return Ok(CheckOrder { settings, is_json, source: None });
    };
    let command = read.deployment.command.clone();
    let (of_command, flags) = read_flags(command.as_deref().unwrap_or_default());
    let wanted = of_command.repositories.clone();
    read.flags = flags;
    let mut settings = settings::read_over(of_command, matches, environment.variables, environment.read_file)?;
    if settings.repositories == wanted {
        settings.repositories.clear();
    }
    settings.repositories.retain(|path| !is_file(path));
    if settings.repositories.is_empty() {
        settings.repositories = on_host(&mut read, &wanted, environment);
    }
    if command.is_none() && read.deployment.notes.is_empty() {
        let note =
            "it has no command of tritonserver: give it behind --, as in `deuteron check Dockerfile -- tritonserver …`";
        read.deployment.notes.push(note.to_owned());
    }
    Ok(CheckOrder { settings, is_json, source: Some(read) })
}

/// Reads a file of a deployment. Its paths start in its folder.
fn of_file(path: &Path, text: &str, environment: Environment) -> Deployment {
    let mut deployment = Deployment::read(text);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    for mapping in &mut deployment.paths {
        if let Some(folder) = folder {
            mapping.host = folder.join(&mapping.host).to_string_lossy().into_owned();
        }
    }
    let mut packages = Vec::new();
    for file in &deployment.requirement_files {
        // The file has the same name in the folder, wherever it was copied to.
        let name = Path::new(file).file_name().map(PathBuf::from).unwrap_or_default();
        let beside = folder.map_or_else(|| name.clone(), |folder| folder.join(&name));
        let mut places = deployment.host_paths(file).into_iter().map(PathBuf::from).chain([beside]);
        match places.find_map(|place| (environment.read_file)(&place).ok()) {
            Some(text) => packages.extend(requirements(&text)),
            None => deployment.notes.push(format!("'{file}' is not there: the packages that it names are not known")),
        }
    }
    deployment.packages.extend(packages);
    deployment
}

/// Returns the paths of this machine that hold the repositories of a command, and notes those that are not there.
fn on_host(read: &mut ReadDeployment, wanted: &[PathBuf], environment: Environment) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in wanted {
        let text = path.to_string_lossy().into_owned();
        let mut hosts: Vec<_> = read.deployment.host_paths(&text).into_iter().map(PathBuf::from).collect();
        // Without a container the command's paths are those of this machine.
        hosts.extend(read.deployment.paths.is_empty().then(|| path.clone()));
        hosts.retain(|host| (environment.has_path)(host.as_os_str()));
        // The innermost mapping, or all models that are mapped one by one.
        let is_around = |mapping: &PathMapping| Path::new(&text).starts_with(&mapping.container);
        if read.deployment.paths.iter().any(is_around) {
            hosts.truncate(1);
        }
        if hosts.is_empty() {
            let note = format!(
                "its repository '{text}' is not on this machine: name it too, as in `deuteron check Dockerfile models`"
            );
            read.deployment.notes.push(note);
        }
        found.extend(hosts);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io;

    use super::*;
    use crate::cli::{Command, parse};
    use crate::settings::deployment::FlagOutcome;

    const DOCKERFILE: &str = "FROM nvcr.io/nvidia/tritonserver:24.01-py3\nWORKDIR /app\nCOPY requirements.txt .\n\
        RUN pip install -r requirements.txt torch==2.1\nCOPY repo /models\n\
        CMD [\"tritonserver\", \"--model-repository=/models\", \"--http-thread-count=4\"]\n";

    fn read_file(path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("a/Dockerfile") => Ok(DOCKERFILE.to_owned()),
            Some("a/requirements.txt") => Ok("pillow\n".to_owned()),
            Some("run.sh") => Ok("tritonserver --model-repository=/srv/m --nope=1\n".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn order(line: &[&str]) -> CheckOrder {
        let has_path = |path: &OsStr| ["a/repo", "/srv/m", "models", "./m"].iter().any(|known| path == *known);
        let environment = Environment { variables: &|_| None, has_path: &has_path, read_file: &read_file };
        match parse(std::iter::once(&"check").chain(line), environment) {
            Ok(Command::Check(order)) => *order,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn paths(order: &CheckOrder) -> Vec<&str> {
        order.settings.repositories.iter().map(|path| path.to_str().unwrap()).collect()
    }

    #[test]
    fn paths_and_flags_are_those_of_a_server() {
        let order = order(&["models", "more", "--gpu=off", "--json"]);
        assert!(order.is_json && order.source.is_none());
        assert_eq!(paths(&order), ["models", "more"]);
        let nothing = Environment { variables: &|_| None, has_path: &|_| false, read_file: &read_file };
        let refused = parse(["check"], nothing).unwrap_err();
        assert!(refused.starts_with(settings::NO_REPOSITORY), "{refused}");
        assert!(parse(["check", "m", "--nope"], nothing).unwrap_err().starts_with("unknown flag '--nope'"));
    }

    #[test]
    fn a_dockerfile_gives_repository_packages_and_flags() {
        let found = order(&["a/Dockerfile"]);
        let source = found.source.clone().unwrap();
        assert_eq!(paths(&found), ["a/repo"]);
        assert_eq!(source.deployment.packages, ["torch==2.1", "pillow"]);
        assert_eq!(source.dockerfile.as_deref(), Some(DOCKERFILE));
        assert!(matches!(&source.flags[1].outcome, FlagOutcome::Ignored(why) if why.contains("has no effect")));
        assert!(source.deployment.notes.is_empty(), "{:?}", source.deployment.notes);
        assert_eq!(paths(&order(&["a/Dockerfile", "models"])), ["models"], "a path that is given holds");
    }

    #[test]
    fn a_command_line_is_read_in_quotes_word_by_word_and_from_a_file() {
        let run = "docker run -v ./m:/models x/tritonserver:24.01-py3 tritonserver --model-repository=/models";
        assert_eq!(paths(&order(&["--", run])), ["./m"]);
        let words: Vec<_> = std::iter::once("--").chain(run.split(' ')).collect();
        assert_eq!(order(&words), order(&["--", run]));
        let found = order(&["run.sh"]);
        assert_eq!(paths(&found), ["/srv/m"]);
        let flags = found.source.unwrap().flags;
        assert!(matches!(&flags[1].outcome, FlagOutcome::Refused(why) if why.starts_with("unknown flag")), "{flags:?}");
        assert_eq!(order(&["--gpu=off", "--", "tritonserver", "--gpu-auto=true"]).settings.gpu, settings::GpuUse::Off);
    }

    #[test]
    fn a_repository_or_a_command_that_is_not_there_is_noted() {
        let noted = |line: &[&str]| order(line).source.unwrap().deployment.notes.join("; ");
        assert!(noted(&["--", "tritonserver --model-repository=/none"]).contains("'/none' is not on this machine"));
        assert!(noted(&["--", "docker run x/tritonserver:24.01-py3"]).contains("no command of tritonserver"));
        assert_eq!(
            order(&["--", "tritonserver --model-repository=/none"]).settings.repositories,
            Vec::<PathBuf>::new()
        );
    }
}

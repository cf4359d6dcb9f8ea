//! `model_repository_agents`: checks of a model's files before they are loaded. Triton's agent
//! `checksum` is built in; any other is a library, and is refused by name unless libraries are allowed. Called by
//! [`crate::config`]; the files are read, and the libraries asked, by the caller.

use crate::limits::CHECKSUMS_MAX;
use crate::parse::json;
use crate::parse::text::{ConfigText, Notation};
use base::error::Error;
use wire::proto::inference::ModelConfig;

/// A file of a model, and its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChecksum {
    /// Its path beneath the model's directory, as the configuration spells it.
    pub path: String,
    /// The MD5 of its bytes as Triton compares it: 32 digits in lower case.
    pub md5: String,
}

const CHECKSUM_AGENT: &str = "checksum";

/// One part of `model_repository_agents`, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentStep {
    /// These files of the model must have these checksums.
    Checksums(Vec<FileChecksum>),
    /// The library of an agent is asked.
    Library {
        /// The agent's name.
        name: String,
        /// Its parameters, in the order of their names.
        parameters: Vec<(String, String)>,
    },
}

/// The agents of a configuration, and the configuration as JSON; without any for a text that does not parse, whose fault is
/// reported where it is read.
///
/// # Errors
/// As [`steps`].
pub fn repository_agents(notation: Notation, text: &[u8]) -> Result<(Vec<AgentStep>, String), Error> {
    let text = ConfigText::decode(notation, text).ok();
    let Some(config) = text.and_then(|text| text.message.transcode_to::<ModelConfig>().ok()) else {
        return Ok((Vec::new(), String::new()));
    };
    Ok((steps(&config, true)?, json::encode(&config)))
}

/// The checksums of a configuration behind the last agent that is a library, in the order of agents and keys.
///
/// # Errors
/// As [`steps`].
pub(super) fn checksums(config: &ModelConfig, allows_libraries: bool) -> Result<Vec<FileChecksum>, Error> {
    let steps = steps(config, allows_libraries)?;
    let last = steps.iter().rposition(|step| matches!(step, AgentStep::Library { .. })).map_or(0, |last| last + 1);
    let behind = steps.into_iter().skip(last).filter_map(|step| match step {
        AgentStep::Checksums(sums) => Some(sums),
        AgentStep::Library { .. } => None,
    });
    Ok(behind.flatten().collect())
}

/// The agents of a configuration.
///
/// # Errors
/// With Triton's texts (`checksum.cc`, `repo_agent.cc`): `InvalidArgument` for an agent that is a library where those are
/// not allowed, or a key without an algorithm, `Unsupported` for another algorithm than MD5. `InvalidArgument` for more
/// than [`CHECKSUMS_MAX`].
fn steps(config: &ModelConfig, allows_libraries: bool) -> Result<Vec<AgentStep>, Error> {
    let (mut steps, mut count) = (Vec::new(), 0);
    for agent in config.model_repository_agents.iter().flat_map(|agents| &agents.agents) {
        let mut parameters: Vec<_> = agent.parameters.iter().collect();
        parameters.sort_unstable();
        if agent.name == CHECKSUM_AGENT {
            count += parameters.len();
            let sums = parameters.into_iter().map(|(key, value)| checksum(key, value)).collect::<Result<_, _>>()?;
            steps.push(AgentStep::Checksums(sums));
            continue;
        }
        if !allows_libraries {
            let name = agent.name.escape_debug();
            return Err(Error::invalid(format!(
                "unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}': this server has the agent \
                 '{CHECKSUM_AGENT}' and loads no others without --allow-agents"
            )));
        }
        let parameters = parameters.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        steps.push(AgentStep::Library { name: agent.name.clone(), parameters });
    }
    if count > CHECKSUMS_MAX {
        return Err(Error::invalid(format!(
            "model '{}' has {count} checksums, more than the {CHECKSUMS_MAX} allowed",
            config.name
        )));
    }
    Ok(steps)
}

/// Reads `MD5:path`.
fn checksum(key: &str, md5: &str) -> Result<FileChecksum, Error> {
    let shown = key.escape_debug();
    let Some((algorithm, path)) = key.split_once(':') else {
        return Err(Error::invalid(format!("failed to parse key: {shown}")));
    };
    if !algorithm.eq_ignore_ascii_case("md5") {
        let algorithm = algorithm.escape_debug();
        return Err(Error::unsupported(format!("Unsupported checksum algorithm: {algorithm}")));
    }
    // A client that may send a configuration would learn the sums of other models' files.
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(Error::invalid(format!("failed to parse key: {shown} leads out of the model's directory")));
    }
    Ok(FileChecksum { path: path.to_owned(), md5: md5.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigDraft, ConfigSurroundings};

    fn read(agents: &str) -> Result<String, String> {
        let text = format!("backend: 'identity' model_repository_agents {{ {agents} }}");
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).map_err(|error| error.text().to_owned())?;
        let all = draft.checksums().into_iter().flatten().map(|sum| format!("{}={}", sum.path, sum.md5));
        Ok(all.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_agent_checksum_is_read_and_every_other_is_refused_by_name() {
        let check = |agents: &str, want: Result<&str, &str>| {
            assert_eq!(read(agents).as_deref(), want.map_err(ToOwned::to_owned).as_ref().map(|text| *text), "{agents}");
        };
        let sum = |key: &str, value: &str| format!("parameters {{ key: '{key}' value: '{value}' }}");
        let agent = |parameters: &str| format!("agents {{ name: 'checksum' {parameters} }}");
        check("", Ok(""));
        check(&agent(""), Ok(""));
        check(&agent(&(sum("md5:b:c", "2") + &sum("MD5:1/a", "1"))), Ok("1/a=1 b:c=2"));
        check(&(agent(&sum("MD5:z", "1")) + &agent(&sum("MD5:a", "2"))), Ok("z=1 a=2"));
        check(&agent(&sum("a", "1")), Err("failed to parse key: a"));
        check(&agent(&sum("SHA256:a", "1")), Err("Unsupported checksum algorithm: SHA256"));
        for path in ["../x", "/etc/passwd", "1/../../x"] {
            let want = format!("failed to parse key: MD5:{path} leads out of the model's directory");
            check(&agent(&sum(&format!("MD5:{path}"), "1")), Err(&want));
        }
        let unknown = "unable to find 'libtritonrepoagent_relocation.so' for repo agent 'relocation': this server has the \
                       agent 'checksum' and loads no others without --allow-agents";
        check("agents { name: 'relocation' }", Err(unknown));
        // With libraries, the checksums behind the last one are those of the files that are loaded.
        let agents = [
            agent(&sum("MD5:a", "1")),
            "agents { name: 'mine' parameters { key: 'k' value: 'v' } }".to_owned(),
            agent(&sum("MD5:b", "2")),
        ];
        let text = format!("backend: 'identity' model_repository_agents {{ {} }}", agents.concat());
        let (steps, config) = repository_agents(Notation::Text, text.as_bytes()).unwrap();
        let file = |path: &str, md5: &str| FileChecksum { path: path.to_owned(), md5: md5.to_owned() };
        let library =
            AgentStep::Library { name: "mine".to_owned(), parameters: vec![("k".to_owned(), "v".to_owned())] };
        assert_eq!(
            steps,
            [AgentStep::Checksums(vec![file("a", "1")]), library, AgentStep::Checksums(vec![file("b", "2")])]
        );
        assert!(config.contains(r#""backend":"identity""#), "{config}");
        let surroundings = ConfigSurroundings { allows_agents: true, ..ConfigSurroundings::of_files(Some(&[])) };
        let draft = ConfigDraft::read("m", Notation::Text, text.as_bytes(), surroundings).unwrap();
        assert_eq!(draft.checksums(), Ok(vec![file("b", "2")]));
        assert_eq!(repository_agents(Notation::Text, b"x {"), Ok((Vec::new(), String::new())));
        let many: String = (0..=CHECKSUMS_MAX).map(|file| sum(&format!("MD5:{file}"), "1")).collect();
        check(&agent(&many), Err("model 'm' has 1025 checksums, more than the 1024 allowed"));
    }
}

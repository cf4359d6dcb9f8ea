//! `model_repository_agents`: checks of a model's files before they are loaded. Triton's agent
//! `checksum` is built in; any other is a library, and is refused by name. Called by
//! [`crate::config`]; the files are read by the caller.

use crate::limits::CHECKSUMS_MAX;
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

/// The checksums of a configuration, in the order of agents and keys.
///
/// # Errors
/// With Triton's texts (`checksum.cc`, `repo_agent.cc`): `InvalidArgument` for an unknown agent or a key without an
/// algorithm, `Unsupported` for another algorithm than MD5. `InvalidArgument` for more than [`CHECKSUMS_MAX`].
pub fn checksums(config: &ModelConfig) -> Result<Vec<FileChecksum>, Error> {
    let mut checksums = Vec::new();
    for agent in config.model_repository_agents.iter().flat_map(|agents| &agents.agents) {
        if agent.name != CHECKSUM_AGENT {
            let name = agent.name.escape_debug();
            return Err(Error::invalid(format!(
                "unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}': this server has the agent \
                 '{CHECKSUM_AGENT}' and loads no others"
            )));
        }
        let mut parameters: Vec<_> = agent.parameters.iter().collect();
        parameters.sort_unstable();
        for (key, value) in parameters {
            checksums.push(checksum(key, value)?);
        }
    }
    if checksums.len() > CHECKSUMS_MAX {
        return Err(Error::invalid(format!(
            "model '{}' has {} checksums, more than the {CHECKSUMS_MAX} allowed",
            config.name,
            checksums.len()
        )));
    }
    Ok(checksums)
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
    use crate::config::ConfigDraft;

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
                       agent 'checksum' and loads no others";
        check("agents { name: 'relocation' }", Err(unknown));
        let many: String = (0..=CHECKSUMS_MAX).map(|file| sum(&format!("MD5:{file}"), "1")).collect();
        check(&agent(&many), Err("model 'm' has 1025 checksums, more than the 1024 allowed"));
    }
}

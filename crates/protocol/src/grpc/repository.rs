//! The model repository extension over gRPC: messages to [`RepositoryOrder`]s, and the index to a message. The texts
//! are those of Triton's `grpc_server.cc`.

use bytes::Bytes;

use crate::framing::{framed, read};
use crate::repository::{LoadOrder, RepositoryOrder, file_path, model_name, named_repository};
use base::error::Error;
use base::limits::ORDER_PARAMETERS_MAX;
use model::repository::index::{IndexEntry, VersionState};
use wire::proto::inference as proto;
use wire::proto::inference::model_repository_parameter::ParameterChoice;
use wire::proto::inference::repository_index_response::ModelIndex;

/// The RPCs of the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryRpc {
    /// `RepositoryIndex`.
    Index,
    /// `RepositoryModelLoad`.
    Load,
    /// `RepositoryModelUnload`.
    Unload,
}

impl RepositoryRpc {
    /// The operation that a message requests.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a bad name, path or parameter, `Unsupported` for a `repository_name`, `Internal` for
    /// bytes that are not the message.
    pub fn order(self, message: &[u8]) -> Result<RepositoryOrder, Error> {
        match self {
            Self::Index => {
                let request: proto::RepositoryIndexRequest = read(message)?;
                check_unnamed(&request.repository_name)?;
                Ok(RepositoryOrder::Index { only_ready: request.ready })
            }
            Self::Load => load_order(read(message)?),
            Self::Unload => {
                let request: proto::RepositoryModelUnloadRequest = read(message)?;
                check_unnamed(&request.repository_name)?;
                let flag = request.parameters.get("unload_dependents");
                let with_dependents = match flag.map(|flag| &flag.parameter_choice) {
                    None => false,
                    Some(Some(ParameterChoice::BoolParam(flag))) => *flag,
                    Some(_) => {
                        let text = "invalid value type for 'unload_dependents' parameter, expected bool_param.";
                        return Err(Error::invalid(text));
                    }
                };
                Ok(RepositoryOrder::Unload { name: model_name(&request.model_name)?, with_dependents })
            }
        }
    }

    /// The framed response once the operation has succeeded. `entries` is empty except for the index.
    ///
    /// # Errors
    ///
    /// `Internal` if the message is larger than 4 GiB.
    pub fn answer(self, entries: Vec<IndexEntry>) -> Result<Bytes, Error> {
        match self {
            Self::Index => {
                let models = entries.into_iter().map(model_index).collect();
                framed(&proto::RepositoryIndexResponse { models })
            }
            Self::Load => framed(&proto::RepositoryModelLoadResponse {}),
            Self::Unload => framed(&proto::RepositoryModelUnloadResponse {}),
        }
    }
}

fn load_order(request: proto::RepositoryModelLoadRequest) -> Result<RepositoryOrder, Error> {
    check_unnamed(&request.repository_name)?;
    let mut load = LoadOrder { name: model_name(&request.model_name)?, ..LoadOrder::default() };
    if request.parameters.len() > ORDER_PARAMETERS_MAX {
        return Err(Error::invalid(format!("a load has at most {ORDER_PARAMETERS_MAX} parameters")));
    }
    let type_error = |key: &str, want: &str| {
        Error::invalid(format!("invalid value type for load parameter '{key}', expected {want}."))
    };
    for (key, value) in request.parameters {
        match (key.as_str(), value.parameter_choice) {
            ("config", Some(ParameterChoice::StringParam(config))) => load.config = Some(config),
            ("config", _) => return Err(type_error(&key, "string_param")),
            (file, choice) if file.starts_with("file:") => {
                let Some(ParameterChoice::BytesParam(contents)) = choice else {
                    return Err(type_error(file, "bytes_param"));
                };
                load.files.push((file_path(file)?, contents.into()));
            }
            _ => return Err(Error::invalid(format!("unrecognized load parameter '{key}'."))),
        }
    }
    // A map has no order; sorted, the same load is always the same operation.
    load.files.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(RepositoryOrder::Load(load))
}

/// Refuses a `repository_name`.
fn check_unnamed(repository: &str) -> Result<(), Error> {
    if repository.is_empty() { Ok(()) } else { Err(named_repository()) }
}

fn model_index(entry: IndexEntry) -> ModelIndex {
    ModelIndex {
        name: entry.name,
        version: entry.version.map(|version| version.to_string()).unwrap_or_default(),
        state: entry.state.map_or("", VersionState::as_str).to_owned(),
        reason: entry.reason,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use wire::grpc::PREFIX_SIZE;

    fn text(rpc: RepositoryRpc, request: &impl Message) -> String {
        match rpc.order(&request.encode_to_vec()) {
            Ok(order) => format!("{order:?}"),
            Err(error) => format!("{} {}", error.code().on_wire().1, error.text()),
        }
    }

    fn load(parameters: &[(&str, ParameterChoice)]) -> String {
        let parameter =
            |choice: &ParameterChoice| proto::ModelRepositoryParameter { parameter_choice: Some(choice.clone()) };
        let parameters = parameters.iter().map(|(key, choice)| ((*key).to_owned(), parameter(choice))).collect();
        let request =
            proto::RepositoryModelLoadRequest { model_name: "m".to_owned(), parameters, ..Default::default() };
        text(RepositoryRpc::Load, &request)
    }

    #[test]
    fn messages_become_orders() {
        use ParameterChoice::{BoolParam, BytesParam, StringParam};
        let index = |name: &str| {
            let request = proto::RepositoryIndexRequest { repository_name: name.to_owned(), ready: true };
            text(RepositoryRpc::Index, &request)
        };
        assert_eq!(index(""), "Index { only_ready: true }");
        assert_eq!(index("r"), "12 'repository_name' specification is not supported");
        assert_eq!(load(&[]), "Load(LoadOrder { name: \"m\", config: None, files: [], place: Repositories })");
        let brought = [("config", StringParam("{}".to_owned())), ("file:1/a", BytesParam(b"foo".to_vec()))];
        assert_eq!(
            load(&brought),
            r#"Load(LoadOrder { name: "m", config: Some("{}"), files: [("1/a", b"foo")], place: Repositories })"#
        );
        assert_eq!(
            load(&[("config", BoolParam(true))]),
            "3 invalid value type for load parameter 'config', expected string_param."
        );
        assert_eq!(
            load(&[("file:1/a", StringParam(String::new()))]),
            "3 invalid value type for load parameter 'file:1/a', expected bytes_param."
        );
        assert_eq!(load(&[("foo", BoolParam(true))]), "3 unrecognized load parameter 'foo'.");
        let unload = |choice: Option<ParameterChoice>| {
            let parameter = choice.map(|choice| {
                let value = proto::ModelRepositoryParameter { parameter_choice: Some(choice) };
                ("unload_dependents".to_owned(), value)
            });
            let parameters = parameter.into_iter().collect();
            let model_name = "m".to_owned();
            text(
                RepositoryRpc::Unload,
                &proto::RepositoryModelUnloadRequest { model_name, parameters, ..Default::default() },
            )
        };
        assert_eq!(unload(None), "Unload { name: \"m\", with_dependents: false }");
        assert_eq!(unload(Some(BoolParam(true))), "Unload { name: \"m\", with_dependents: true }");
        assert_eq!(
            unload(Some(StringParam(String::new()))),
            "3 invalid value type for 'unload_dependents' parameter, expected bool_param."
        );
        assert!(text(RepositoryRpc::Load, &proto::RepositoryModelLoadRequest::default()).contains("cannot be empty"));
    }

    #[test]
    fn the_index_leaves_empty_what_is_not_known() {
        let entry = IndexEntry {
            name: "m".to_owned(),
            version: Some(2),
            state: Some(VersionState::Unavailable),
            reason: "unloaded".to_owned(),
        };
        let entries = vec![IndexEntry { name: "a".to_owned(), ..IndexEntry::default() }, entry];
        let answer = RepositoryRpc::Index.answer(entries).unwrap();
        let response = proto::RepositoryIndexResponse::decode(&answer[PREFIX_SIZE..]).unwrap();
        let row = |index: &ModelIndex| format!("{} {} {} {}", index.name, index.version, index.state, index.reason);
        let rows: Vec<_> = response.models.iter().map(row).collect();
        assert_eq!(rows, ["a   ", "m 2 UNAVAILABLE unloaded"]);
        assert_eq!(RepositoryRpc::Load.answer(Vec::new()).unwrap().len(), PREFIX_SIZE);
    }
}

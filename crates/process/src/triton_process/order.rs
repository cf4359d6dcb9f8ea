//! The server's order to a process at its start, and a backend's changes of a configuration on
//! their way back. Pure.

use std::path::PathBuf;
use std::time::Duration;

use crate::python::message::{MessageError, PieceReader, put_bytes32, put_count, put_path, put_str32, put_u64};
use crate::triton::{BackendSetting, HostOptions, HostedChanges, InstancePlace, PreferredGroup};
use base::error::Error;
use model::{HostedLibrary, InstanceKind, ModelSpec};

/// The library and the model of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LibraryOrder {
    pub(super) options: HostOptions,
    pub(super) is_verbose: bool,
    /// The name of the backend, and the file of its library.
    pub(super) backend: String,
    pub(super) file: String,
    /// The model: its name, the one in its namespace, and its version.
    pub(super) name: String,
    pub(super) qualified_name: String,
    pub(super) version: u64,
    pub(super) version_directory: PathBuf,
    /// The configuration in JSON.
    pub(super) config: String,
    /// `None` to complete the configuration only.
    pub(super) instance: Option<InstanceOrder>,
}

/// The instance that a process has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceOrder {
    /// The effective configuration, an encoded `inference.ModelConfig`.
    pub(super) config: Vec<u8>,
    pub(super) library: HostedLibrary,
    pub(super) place: InstancePlace,
}

impl LibraryOrder {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let HostOptions { backend_directory, follows_links, auto_complete, finalize_max, host_policies, settings } =
            &self.options;
        put_path(backend_directory, &mut out);
        out.push(u8::from(*follows_links));
        out.push(u8::from(*auto_complete));
        put_u64(u64::try_from(finalize_max.as_millis()).unwrap_or(u64::MAX), &mut out);
        put_count(host_policies.len(), &mut out);
        for (policy, settings) in host_policies {
            put_str32(policy, &mut out);
            put_count(settings.len(), &mut out);
            settings
                .iter()
                .for_each(|(key, value)| [key, value].into_iter().for_each(|text| put_str32(text, &mut out)));
        }
        put_count(settings.len(), &mut out);
        for BackendSetting { backend, key, value } in settings {
            [backend, key, value].into_iter().for_each(|text| put_str32(text, &mut out));
        }
        out.push(u8::from(self.is_verbose));
        let texts = [&self.backend, &self.file, &self.name, &self.qualified_name];
        texts.into_iter().for_each(|text| put_str32(text, &mut out));
        put_u64(self.version, &mut out);
        put_path(&self.version_directory, &mut out);
        put_str32(&self.config, &mut out);
        out.push(u8::from(self.instance.is_some()));
        if let Some(instance) = &self.instance {
            instance.encode(&mut out);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut reader = PieceReader::new(bytes);
        let reader = &mut reader;
        let backend_directory = reader.path32()?;
        let (follows_links, auto_complete) = (reader.flag()?, reader.flag()?);
        let finalize_max = Duration::from_millis(reader.u64()?);
        let setting = |reader: &mut PieceReader<'_>| Ok((reader.string32()?, reader.string32()?));
        let host_policies = reader.list32(|reader| Ok((reader.string32()?, reader.list32(setting)?)))?;
        let host_policies =
            host_policies.into_iter().map(|(policy, settings)| (policy, settings.into_iter().collect())).collect();
        let settings = reader.list32(|reader| {
            Ok(BackendSetting { backend: reader.string32()?, key: reader.string32()?, value: reader.string32()? })
        })?;
        let order = Self {
            options: HostOptions {
                backend_directory,
                follows_links,
                auto_complete,
                finalize_max,
                host_policies,
                settings,
            },
            is_verbose: reader.flag()?,
            backend: reader.string32()?,
            file: reader.string32()?,
            name: reader.string32()?,
            qualified_name: reader.string32()?,
            version: reader.u64()?,
            version_directory: reader.path32()?,
            config: reader.string32()?,
            instance: if reader.flag()? { Some(InstanceOrder::decode(reader)?) } else { None },
        };
        reader.is_at_end().then_some(order).ok_or(MessageError::Trailing)
    }
}

impl InstanceOrder {
    /// The spec that the host of the process loads.
    ///
    /// # Errors
    /// `Internal` if the configuration is not one of this server.
    pub(super) fn spec(&self, order: &LibraryOrder) -> Result<ModelSpec, Error> {
        let mut spec = ModelSpec::of_engine(&self.config, &[])?;
        spec.name.clone_from(&order.name);
        spec.backend.clone_from(&order.backend);
        spec.python = None;
        spec.library = Some(self.library.clone().into());
        spec.config_json = order.config.as_str().into();
        Ok(spec)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes32(&self.config, out);
        let HostedLibrary { file, outputs_asked, states, is_sequence, is_iterative } = &self.library;
        put_str32(file, out);
        put_u64(*outputs_asked as u64, out);
        put_count(states.len(), out);
        states.iter().for_each(|state| put_u64(*state as u64, out));
        out.extend_from_slice(&[u8::from(*is_sequence), u8::from(*is_iterative)]);
        let InstancePlace { name, kind, gpu, host_policy, is_passive, profiles } = &self.place;
        put_str32(name, out);
        out.push(kind_number(*kind));
        put_u64(gpu.map_or(0, |gpu| u64::from(gpu) + 1), out);
        put_str32(host_policy, out);
        out.push(u8::from(*is_passive));
        put_count(profiles.len(), out);
        profiles.iter().for_each(|profile| put_str32(profile, out));
    }

    fn decode(reader: &mut PieceReader<'_>) -> Result<Self, MessageError> {
        let size = |number| usize::try_from(number).map_err(|_| MessageError::Count);
        let config = reader.bytes32()?.to_vec();
        let library = HostedLibrary {
            file: reader.string32()?,
            outputs_asked: size(reader.u64()?)?,
            states: reader.list32(|reader| size(reader.u64()?))?,
            is_sequence: reader.flag()?,
            is_iterative: reader.flag()?,
        };
        let place = InstancePlace {
            name: reader.string32()?,
            kind: kind_of(reader.u8()?)?,
            gpu: reader.u64()?.checked_sub(1).and_then(|gpu| u32::try_from(gpu).ok()),
            host_policy: reader.string32()?,
            is_passive: reader.flag()?,
            profiles: reader.list32(PieceReader::string32)?,
        };
        Ok(Self { config, library, place })
    }
}

/// A backend's changes of a configuration, as text: a line for each group that it prefers, an empty
/// one, and `=` with the configuration if there is a new one.
pub(super) fn encode_changes(changes: &HostedChanges) -> String {
    let mut out = String::new();
    for PreferredGroup { kind, count, gpus } in &changes.preferred {
        let kind = kind.map_or_else(|| "-".to_owned(), |kind| kind_number(kind).to_string());
        out.push_str(&format!("{kind} {count}"));
        gpus.iter().for_each(|gpu| out.push_str(&format!(" {gpu}")));
        out.push('\n');
    }
    out.push('\n');
    if let Some(config) = &changes.config {
        out.push('=');
        out.push_str(config);
    }
    out
}

/// Reads a backend's changes of a configuration from a process: a claim.
pub(super) fn decode_changes(text: &str) -> Result<HostedChanges, MessageError> {
    let wrong = || MessageError::Value("the completed configuration");
    let (mut preferred, mut rest) = (Vec::new(), text);
    loop {
        let (line, behind) = rest.split_once('\n').ok_or_else(wrong)?;
        rest = behind;
        if line.is_empty() {
            break;
        }
        let mut words = line.split(' ');
        let kind = match words.next() {
            Some("-") | None => None,
            Some(kind) => Some(kind_of(kind.parse().map_err(|_| wrong())?)?),
        };
        let mut number = || words.next().map(|word| word.parse::<u64>().map_err(|_| wrong()));
        let count = number().ok_or_else(wrong)??;
        let gpus = std::iter::from_fn(number).collect::<Result<_, _>>()?;
        preferred.push(PreferredGroup { kind, count, gpus });
    }
    let config = rest.strip_prefix('=').map(str::to_owned);
    if config.is_none() && !rest.is_empty() {
        return Err(wrong());
    }
    Ok(HostedChanges { config, preferred })
}

const fn kind_number(kind: InstanceKind) -> u8 {
    match kind {
        InstanceKind::Cpu => 0,
        InstanceKind::Gpu => 1,
        InstanceKind::Model => 2,
    }
}

const fn kind_of(number: u8) -> Result<InstanceKind, MessageError> {
    match number {
        0 => Ok(InstanceKind::Cpu),
        1 => Ok(InstanceKind::Gpu),
        2 => Ok(InstanceKind::Model),
        _ => Err(MessageError::Value("the kind of an instance")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> LibraryOrder {
        LibraryOrder {
            options: HostOptions {
                backend_directory: "/a b/backends".into(),
                follows_links: false,
                auto_complete: true,
                finalize_max: Duration::from_secs(30),
                host_policies: [("far".to_owned(), [("cpu-cores".to_owned(), "0-1".to_owned())].into())].into(),
                settings: vec![BackendSetting {
                    backend: String::new(),
                    key: "k".to_owned(),
                    value: "\u{e9}".to_owned(),
                }],
            },
            is_verbose: true,
            backend: "identity".to_owned(),
            file: "libtriton_identity.so".to_owned(),
            name: "m".to_owned(),
            qualified_name: "n::m".to_owned(),
            version: 7,
            version_directory: "/models/m/7".into(),
            config: "{}".to_owned(),
            instance: Some(InstanceOrder {
                config: vec![1, 2, 0],
                library: HostedLibrary {
                    file: "libtriton_identity.so".to_owned(),
                    outputs_asked: 1,
                    states: vec![1, 2],
                    is_sequence: true,
                    is_iterative: false,
                },
                place: InstancePlace {
                    name: "m_0_1".to_owned(),
                    kind: InstanceKind::Gpu,
                    gpu: Some(0),
                    host_policy: "gpu_0".to_owned(),
                    is_passive: false,
                    profiles: vec!["1".to_owned()],
                },
            }),
        }
    }

    #[test]
    fn an_order_comes_as_it_was_sent_and_no_part_of_it_is_one() {
        let complete = LibraryOrder { instance: None, ..order() };
        for order in [order(), complete] {
            let bytes = order.encode();
            assert_eq!(LibraryOrder::decode(&bytes), Ok(order));
            (0..bytes.len()).for_each(|size| assert!(LibraryOrder::decode(&bytes[..size]).is_err(), "{size}"));
            assert_eq!(LibraryOrder::decode(&[&bytes[..], &[0]].concat()), Err(MessageError::Trailing));
        }
    }

    #[test]
    fn what_a_backend_completes_comes_back() {
        let group = |kind| PreferredGroup { kind, count: 2, gpus: vec![0, 3] };
        let changes = HostedChanges {
            config: Some("{\n\"name\":\"m\"}".to_owned()),
            preferred: vec![group(None), group(Some(InstanceKind::Model))],
        };
        let none = HostedChanges { config: None, preferred: Vec::new() };
        for changes in [changes, none] {
            assert_eq!(decode_changes(&encode_changes(&changes)), Ok(changes));
        }
        for wrong in ["", "-", "9 1\n\n", "0 x\n\n", "0\n\n", "0 1 -1\n\n", "\nrest"] {
            assert!(decode_changes(wrong).is_err(), "{wrong}");
        }
    }
}

//! The log settings extension over gRPC.

use bytes::Bytes;

use crate::framing::{framed, read};
use crate::logging::{LogState, LogUpdate, file_is_fixed, format_of};
use base::error::Error;
use wire::proto::inference as proto;
use wire::proto::inference::log_settings_request::setting_value::ParameterChoice as Asked;
use wire::proto::inference::log_settings_response::SettingValue;
use wire::proto::inference::log_settings_response::setting_value::ParameterChoice as Told;

/// Returns the changes that a `LogSettings` asks for. As in Triton, unknown keys ask for nothing.
///
/// # Errors
///
/// `Internal` for bytes that are not the message, `InvalidArgument` for a value of another type, `Unsupported` for
/// another file.
pub fn update(message: &[u8]) -> Result<LogUpdate, Error> {
    let settings = read::<proto::LogSettingsRequest>(message)?.settings;
    let given = |name: &str| settings.get(name).map(|value| value.parameter_choice.as_ref());
    let mistyped = |kind: &str, name: &str| Error::invalid(format!("expect {kind} for '{name}'"));
    let flag = |name: &str| match given(name) {
        None => Ok(None),
        Some(Some(Asked::BoolParam(value))) => Ok(Some(*value)),
        Some(_) => Err(mistyped("boolean", name)),
    };
    if given("log_file").is_some() {
        return Err(file_is_fixed());
    }
    Ok(LogUpdate {
        info: flag("log_info")?,
        warning: flag("log_warning")?,
        error: flag("log_error")?,
        verbose: match given("log_verbose_level") {
            None => None,
            Some(Some(Asked::Uint32Param(level))) => Some(*level),
            Some(_) => return Err(mistyped("int32", "log_verbose_level")),
        },
        format: match given("log_format") {
            None => None,
            Some(Some(Asked::StringParam(name))) => Some(
                format_of(name)
                    .ok_or_else(|| Error::invalid(format!("invalid argument for log_format, got: {name}")))?,
            ),
            Some(_) => return Err(mistyped("string", "log_format")),
        },
    })
}

/// The framed message with the state of the log.
///
/// # Errors
///
/// Never: the message is small.
pub fn answer(state: &LogState) -> Result<Bytes, Error> {
    let text = |text: &str| Told::StringParam(text.to_owned());
    let settings = [
        ("log_error", Told::BoolParam(state.error)),
        ("log_file", text(state.file)),
        ("log_format", text(state.format)),
        ("log_info", Told::BoolParam(state.info)),
        ("log_verbose_level", Told::Uint32Param(state.verbose)),
        ("log_warning", Told::BoolParam(state.warning)),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), SettingValue { parameter_choice: Some(value) }));
    framed(&proto::LogSettingsResponse { settings: settings.into() })
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use wire::grpc::PREFIX_SIZE;
    use wire::proto::inference::log_settings_request;

    fn ask(settings: &[(&str, Option<Asked>)]) -> Result<LogUpdate, String> {
        let value = |value: &Option<Asked>| log_settings_request::SettingValue { parameter_choice: value.clone() };
        let settings = settings.iter().map(|(name, given)| ((*name).to_owned(), value(given))).collect();
        let message = proto::LogSettingsRequest { settings }.encode_to_vec();
        update(&message).map_err(|error| format!("{} {}", error.code().on_wire().1, error.text()))
    }

    #[test]
    fn a_message_becomes_an_update_or_tritons_error() {
        let (yes, two) = (Some(Asked::BoolParam(true)), Some(Asked::Uint32Param(2)));
        let text = |text: &str| Some(Asked::StringParam(text.to_owned()));
        assert_eq!(ask(&[]), Ok(LogUpdate::default()));
        assert_eq!(ask(&[("other", yes.clone())]), Ok(LogUpdate::default()));
        let all = [("log_info", yes.clone()), ("log_verbose_level", two.clone()), ("log_format", text("ISO8601"))];
        let want = LogUpdate { info: Some(true), verbose: Some(2), format: Some("ISO8601"), ..LogUpdate::default() };
        assert_eq!(ask(&all), Ok(want));
        let check = |name: &str, value: &Option<Asked>, want: &str| {
            assert_eq!(ask(&[(name, value.clone())]), Err(want.to_owned()), "{name}");
        };
        check("log_info", &two, "3 expect boolean for 'log_info'");
        check("log_warning", &None, "3 expect boolean for 'log_warning'");
        check("log_verbose_level", &yes, "3 expect int32 for 'log_verbose_level'");
        check("log_format", &two, "3 expect string for 'log_format'");
        check("log_format", &text("foo"), "3 invalid argument for log_format, got: foo");
        check("log_file", &two, "12 log file location can not be updated through network protocol");
        assert!(update(&[0xff]).is_err());
    }

    #[test]
    fn an_answer_has_all_settings() {
        let state = LogState { file: "f", info: true, warning: false, error: true, verbose: 3, format: "json" };
        let message = answer(&state).unwrap().split_off(PREFIX_SIZE);
        let settings = proto::LogSettingsResponse::decode(message).unwrap().settings;
        let told = |name: &str| settings[name].parameter_choice.clone().unwrap();
        assert_eq!(told("log_file"), Told::StringParam("f".to_owned()));
        assert_eq!(told("log_verbose_level"), Told::Uint32Param(3));
        assert_eq!((told("log_warning"), settings.len()), (Told::BoolParam(false), 6));
    }
}

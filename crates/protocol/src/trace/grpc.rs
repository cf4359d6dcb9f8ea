//! The trace settings over gRPC (`TraceSetting`). The texts are those of Triton's `grpc_server.cc`.

use bytes::Bytes;

use crate::framing::{framed, read};
use crate::trace::{TraceOrder, count, file_is_fixed, level, told, unsigned};
use base::error::Error;
use trace::{SettingChange, SettingUpdate, TraceTable};
use wire::proto::inference as proto;
use wire::proto::inference::trace_setting_response::SettingValue;

/// The model that a message is about, empty without one, and the change that it asks for, if any.
///
/// # Errors
/// `Internal` for bytes that are not the message, `InvalidArgument` for a value that is not as expected, `Unsupported`
/// for `trace_file`; the model is not known to exist by then.
pub fn question(message: &[u8]) -> Result<(String, Result<Option<TraceOrder>, Error>), Error> {
    let request: proto::TraceSettingRequest = read(message)?;
    let order = if request.settings.is_empty() { Ok(None) } else { order(&request).map(Some) };
    Ok((request.model_name, order))
}

/// The framed response: the setting of a model, or the global one if `model` is empty.
///
/// # Errors
/// Never: the message is small.
pub fn answer(table: &TraceTable, model: &str) -> Result<Bytes, Error> {
    let (levels, fields) = told(table, model);
    let mut response = proto::TraceSettingResponse::default();
    let levels = SettingValue { value: levels.into_iter().map(str::to_owned).collect() };
    response.settings.insert("trace_level".to_owned(), levels);
    for (name, value) in fields {
        response.settings.entry(name).or_default().value.push(value);
    }
    framed(&response)
}

fn order(request: &proto::TraceSettingRequest) -> Result<TraceOrder, Error> {
    let values = |name: &str| request.settings.get(name).map(|setting| &setting.value[..]);
    if values("trace_file").is_some() {
        return Err(file_is_fixed());
    }
    let level = match values("trace_level") {
        None => SettingUpdate::Keep,
        Some([]) => SettingUpdate::Clear,
        Some(names) => level(names.iter().map(String::as_str))?.map_or(SettingUpdate::Keep, SettingUpdate::Set),
    };
    let change = SettingChange {
        level,
        rate: update("trace_rate", values("trace_rate"), |text| unsigned("trace_rate", text))?,
        count: update("trace_count", values("trace_count"), |text| count(text, " "))?,
        log_frequency: update("log_frequency", values("log_frequency"), |text| unsigned("log_frequency", text))?,
    };
    Ok(TraceOrder { model: request.model_name.clone(), change })
}

fn update<T>(
    name: &str,
    values: Option<&[String]>,
    read: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<SettingUpdate<T>, Error> {
    match values {
        None => Ok(SettingUpdate::Keep),
        Some([]) => Ok(SettingUpdate::Clear),
        Some([text]) => read(text).map(SettingUpdate::Set),
        Some(_) => Err(Error::invalid(format!("expect only 1 value for '{name}'"))),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use wire::grpc::PREFIX_SIZE;

    #[test]
    fn messages_are_changes_or_are_refused_with_tritons_texts() {
        let check = |settings: &[(&str, &[&str])], want: &str| {
            let mut request = proto::TraceSettingRequest { model_name: "m".to_owned(), ..Default::default() };
            for (name, values) in settings {
                let value = values.iter().map(|value| (*value).to_owned()).collect();
                let value = proto::trace_setting_request::SettingValue { value };
                request.settings.insert((*name).to_owned(), value);
            }
            let (model, order) = question(&request.encode_to_vec()).unwrap();
            assert_eq!(model, "m");
            let got = match order {
                Ok(None) => "none".to_owned(),
                Ok(Some(TraceOrder { change, .. })) => {
                    format!("{:?} {:?} {:?} {:?}", change.level, change.rate, change.count, change.log_frequency)
                }
                Err(error) => error.text().to_owned(),
            };
            assert_eq!(got.replace("TraceLevel ", ""), want, "{settings:?}");
        };
        check(&[], "none");
        check(
            &[("trace_level", &["TIMESTAMPS", "TENSORS"]), ("trace_rate", &["7"]), ("trace_count", &[])],
            "Set({ timestamps: true, tensors: true }) Set(7) Clear Keep",
        );
        check(&[("trace_level", &[]), ("other", &["x"])], "Clear Keep Keep Keep");
        check(&[("trace_rate", &["1", "2"])], "expect only 1 value for 'trace_rate'");
        check(&[("trace_count", &["-5"])], "Unable to parse 'trace_count'. Expecting value >= -1, got: -5");
        check(&[("log_frequency", &["x"])], "Unable to parse 'log_frequency', got: x");
        check(&[("trace_file", &[])], "trace file location can not be updated through network protocol");
        assert_eq!(question(&[0xff]).unwrap_err(), Error::internal("Unable to parse request"));
    }

    #[test]
    fn the_answer_has_every_field() {
        let answer = answer(&TraceTable::default(), "m").unwrap();
        let response = proto::TraceSettingResponse::decode(&answer[PREFIX_SIZE..]).unwrap();
        let fields: Vec<_> = response.settings.into_iter().map(|(name, value)| (name, value.value.concat())).collect();
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let want = "log_frequency=0 trace_count=-1 trace_file= trace_level=OFF trace_mode=triton trace_rate=1000";
        assert_eq!(fields.join(" "), want);
    }
}

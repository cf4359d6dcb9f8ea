//! Encodes results and errors as replies: JSON in Triton's order of keys, then the binary outputs, which are sent
//! without a copy. Called by the shard when a request is complete.

use bytemuck::AnyBitPattern;
use bytes::Bytes;
use smallvec::SmallVec;

use crate::infer::{NonFinite, OutputPlan, ResponsePlan, SequenceParameters};
use crate::outputs::{SentOutput, StringForm, planned_outputs};
use crate::rest::decode::check_json_output;
use base::error::{Code, Error};
use base::tensor::strings::Strings;
use base::tensor::{Datatype, Tensor, byte_size, element_count};
use model::parameters::{ParameterValue, Parameters};
use model::{CorrelationId, ModelSpec};
use wire::base64;
use wire::json::writer::{self, Float};
use wire::message::Reply;

/// Encodes a response. `outputs` are in the order of the model's outputs; the plan has those to
/// send, and the form of each. `parameters` are those of the model's answer.
///
/// # Errors
///
/// `Internal` if an output is missing that the model may not leave out, or does not fit its shape;
/// `InvalidArgument` for strings that are not UTF-8, or an error of
/// [`crate::classification::classify`].
pub fn encode(
    spec: &ModelSpec,
    version: u64,
    plan: &ResponsePlan,
    outputs: Vec<Tensor>,
    parameters: Option<&Parameters>,
) -> Result<Reply, Error> {
    let sent = planned_outputs(spec, plan, outputs)?;
    let mut json = Vec::with_capacity(
        sent.iter()
            .map(|output| output.size_expected())
            .sum::<usize>()
            .saturating_add(plan.id.len().saturating_add(spec.name.len()).saturating_add(HEAD_SIZE_EXPECTED)),
    );
    json.push(b'{');
    if !plan.id.is_empty() {
        json.extend_from_slice(b"\"id\":");
        writer::string(&plan.id, &mut json);
        json.push(b',');
    }
    json.extend_from_slice(b"\"model_name\":");
    writer::string(&spec.name, &mut json);
    json.extend_from_slice(b",\"model_version\":\"");
    writer::integer(version, &mut json);
    json.push(b'"');
    if plan.repeated.is_some() || parameters.is_some() {
        write_parameters(plan.repeated.as_deref(), parameters, plan.non_finite, &mut json);
    }
    json.extend_from_slice(b",\"outputs\":[");
    let mut parts: SmallVec<[Bytes; 2]> = SmallVec::new();
    for (index, output) in sent.into_iter().enumerate() {
        writer::comma(index, &mut json);
        output.write(&mut json)?;
        if output.is_binary && !output.is_shared && !output.tensor.contents.is_empty() {
            parts.push(output.tensor.contents);
        }
    }
    json.extend_from_slice(b"]}");
    if parts.is_empty() {
        return Ok(Reply::new(200, JSON, json));
    }
    let mut reply = Reply::new(200, "application/octet-stream", Bytes::new());
    // The digits of the header's value are appended to the JSON and split off, which saves an allocation.
    let size = json.len();
    writer::integer(size, &mut json);
    let mut json = Bytes::from(json);
    reply.fields.push(("Inference-Header-Content-Length", json.split_off(size)));
    reply.body = std::iter::once(json).chain(parts).collect();
    Ok(reply)
}

/// Bytes of the outputs that [`encode`] writes as JSON.
#[inline]
pub fn json_output_size(plan: &ResponsePlan, outputs: &[Tensor]) -> usize {
    let is_json = |output: &&OutputPlan| !output.is_binary && output.class_count == 0;
    let sent = plan.outputs.iter().filter(is_json).filter_map(|output| outputs.get(output.index));
    sent.map(|tensor| tensor.contents.len()).sum()
}

/// Writes the echoed sequence parameters, then the model's own.
fn write_parameters(
    repeated: Option<&SequenceParameters>,
    own: Option<&Parameters>,
    non_finite: NonFinite,
    json: &mut Vec<u8>,
) {
    json.extend_from_slice(b",\"parameters\":{");
    if let Some(repeated) = repeated {
        write_repeated(repeated, json);
    }
    for (index, (name, value)) in own.into_iter().flat_map(|own| &own.0).enumerate() {
        writer::comma(index.saturating_add(usize::from(repeated.is_some())), json);
        writer::string(name, json);
        json.push(b':');
        write_parameter(value, non_finite, json);
    }
    json.push(b'}');
}

/// Writes the value of a parameter.
pub(super) fn write_parameter(value: &ParameterValue, non_finite: NonFinite, json: &mut Vec<u8>) {
    match value {
        ParameterValue::Bool(value) => writer::boolean(*value, json),
        ParameterValue::Double(value) => write_float(*value, non_finite, json),
        ParameterValue::Int64(value) => writer::integer(*value, json),
        ParameterValue::Text(value) => writer::string(value, json),
        ParameterValue::Uint64(value) => writer::integer(*value, json),
    }
}

/// Writes a float, whatever it is.
fn write_float<T: Float>(value: T, non_finite: NonFinite, json: &mut Vec<u8>) {
    match non_finite {
        NonFinite::Null if !value.widen().is_finite() => json.extend_from_slice(b"null"),
        NonFinite::Text if !value.widen().is_finite() => {
            json.push(b'"');
            writer::float(value, json);
            json.push(b'"');
        }
        _ => writer::float(value, json),
    }
}

/// Writes the echoed sequence parameters; a numeric id as an int64, as in Triton.
fn write_repeated(repeated: &SequenceParameters, json: &mut Vec<u8>) {
    let SequenceParameters { id, is_start, is_end } = repeated;
    json.extend_from_slice(b"\"sequence_id\":");
    match id {
        Some(CorrelationId::Text(text)) => writer::string(text, json),
        Some(CorrelationId::Number(number) | CorrelationId::Own(number)) => {
            writer::integer(number.cast_signed(), json);
        }
        None => writer::integer(0, json),
    }
    for (key, is_set) in [(&b",\"sequence_start\":"[..], is_start), (b",\"sequence_end\":", is_end)] {
        json.extend_from_slice(key);
        writer::boolean(*is_set, json);
    }
}

/// The content type of all replies without binary outputs.
pub(crate) const JSON: &str = "application/json";
pub(super) const PLAIN: &str = "text/plain";

/// Bytes of JSON around the outputs, roughly.
const HEAD_SIZE_EXPECTED: usize = 96;

/// An error as a reply: `{"error":"…"}`. If the server is only unavailable for now, `Retry-After` tells when to try
/// again.
pub fn error_reply(error: &Error) -> Reply {
    let mut reply = Reply::new(error.code().on_wire().0, JSON, error_json(error));
    if let Some(wait) = error.retry_after() {
        let seconds = wait.seconds();
        let text = if seconds == 1 { Bytes::from_static(b"1") } else { Bytes::from(seconds.to_string()) };
        reply.fields.push(("Retry-After", text));
    }
    if error.code() == Code::Unauthenticated {
        // RFC 9110 §15.5.2: such a reply names the way to authenticate.
        reply.fields.push(("WWW-Authenticate", Bytes::from_static(b"Bearer")));
    }
    reply
}

/// `{"error":"…"}`.
pub(super) fn error_json(error: &Error) -> Vec<u8> {
    let mut json = Vec::with_capacity(error.text().len().saturating_add(16));
    json.extend_from_slice(b"{\"error\":");
    writer::string(error.text(), &mut json);
    json.push(b'}');
    json
}

impl SentOutput<'_> {
    /// Approximate bytes of its JSON, to allocate once.
    pub(super) fn size_expected(&self) -> usize {
        let data = match self.tensor.datatype {
            _ if self.is_binary => 0,
            Datatype::Bytes => self.tensor.contents.len(),
            Datatype::Bool | Datatype::Uint8 | Datatype::Int8 => self.tensor.contents.len().saturating_mul(5),
            // The shortest text of a number is rarely more than three times as long as its bytes.
            _ => self.tensor.contents.len().saturating_mul(3),
        };
        data.saturating_add(self.spec.name.len()).saturating_add(HEAD_SIZE_EXPECTED)
    }

    fn write(&self, json: &mut Vec<u8>) -> Result<(), Error> {
        json.extend_from_slice(b"{\"name\":");
        writer::string(&self.spec.name, json);
        json.extend_from_slice(b",\"datatype\":\"");
        json.extend_from_slice(self.tensor.datatype.name().as_bytes());
        json.extend_from_slice(b"\",\"shape\":");
        write_shape(&self.tensor.shape, json);
        if self.is_shared {
            json.push(b'}');
            return Ok(());
        }
        if self.is_binary {
            json.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            writer::integer(self.tensor.contents.len(), json);
            json.extend_from_slice(b"}}");
            return Ok(());
        }
        if self.strings == StringForm::Base64 && self.tensor.datatype == Datatype::Bytes {
            json.extend_from_slice(b",\"parameters\":{\"content_type\":\"base64\"}");
        }
        json.extend_from_slice(b",\"data\":[");
        self.write_data(json)?;
        json.extend_from_slice(b"]}");
        Ok(())
    }

    /// Writes the elements as one flat array.
    pub(super) fn write_data(&self, json: &mut Vec<u8>) -> Result<(), Error> {
        check_json_output(self.tensor.datatype)?;
        let contents = &self.tensor.contents;
        match byte_size(self.tensor.datatype, &self.tensor.shape) {
            Ok(Some(size)) if size == contents.len() => {}
            Ok(None) => return self.write_strings(json),
            _ => return Err(self.shape_mismatch()),
        }
        match self.tensor.datatype {
            Datatype::Bool => write_elements::<u8>(contents, json, |value, json| writer::boolean(value != 0, json)),
            Datatype::Fp32 if self.non_finite != NonFinite::Literal => {
                write_elements::<f32>(contents, json, |value, json| write_float(value, self.non_finite, json));
            }
            Datatype::Fp64 if self.non_finite != NonFinite::Literal => {
                write_elements::<f64>(contents, json, |value, json| write_float(value, self.non_finite, json));
            }
            datatype => write_elements_of(datatype, contents, json),
        }
        Ok(())
    }

    fn write_strings(&self, json: &mut Vec<u8>) -> Result<(), Error> {
        let mut count = 0_usize;
        for element in Strings::new(&self.tensor.contents) {
            let element = element.map_err(|_| self.shape_mismatch())?;
            writer::comma(count, json);
            match (self.strings, std::str::from_utf8(element)) {
                (StringForm::Text | StringForm::ObjectUnlessText, Ok(text)) => writer::string(text, json),
                (StringForm::Base64, _) => writer::string(&base64::encode_padded(element), json),
                (StringForm::Object | StringForm::ObjectUnlessText, _) => {
                    json.extend_from_slice(b"{\"b64\":");
                    writer::string(&base64::encode_padded(element), json);
                    json.push(b'}');
                }
                (StringForm::Text, Err(_)) => return Err(self.not_text(count)),
            }
            count = count.saturating_add(1);
        }
        if element_count(&self.tensor.shape) == Ok(count) { Ok(()) } else { Err(self.shape_mismatch()) }
    }

    fn not_text(&self, index: usize) -> Error {
        Error::invalid(format!(
            "element {index} of output '{}' is not UTF-8, which JSON requires. Please use the binary data format for \
             output",
            self.spec.name
        ))
    }

    fn shape_mismatch(&self) -> Error {
        Error::internal(format!("output tensor shape does not match size of output for '{}'", self.spec.name))
    }
}

/// Writes a shape as a JSON array.
pub(super) fn write_shape(shape: &[i64], json: &mut Vec<u8>) {
    json.push(b'[');
    for (index, dimension) in shape.iter().enumerate() {
        writer::comma(index, json);
        writer::integer(*dimension, json);
    }
    json.push(b']');
}

/// Writes the elements of a numeric datatype, with commas between them; nothing for another
/// datatype.
pub(crate) fn write_elements_of(datatype: Datatype, contents: &[u8], json: &mut Vec<u8>) {
    match datatype {
        Datatype::Uint8 => write_elements::<u8>(contents, json, writer::integer),
        Datatype::Uint16 => write_elements::<u16>(contents, json, writer::integer),
        Datatype::Uint32 => write_elements::<u32>(contents, json, writer::integer),
        Datatype::Uint64 => write_elements::<u64>(contents, json, writer::integer),
        Datatype::Int8 => write_elements::<i8>(contents, json, writer::integer),
        Datatype::Int16 => write_elements::<i16>(contents, json, writer::integer),
        Datatype::Int32 => write_elements::<i32>(contents, json, writer::integer),
        Datatype::Int64 => write_elements::<i64>(contents, json, writer::integer),
        Datatype::Fp32 => write_elements::<f32>(contents, json, writer::float),
        Datatype::Fp64 => write_elements::<f64>(contents, json, writer::float),
        Datatype::Bool | Datatype::Fp16 | Datatype::Bf16 | Datatype::Bytes => {}
    }
}

/// Writes the elements of a `BYTES` tensor as strings, for any bytes, up to the first truncated
/// one.
pub(crate) fn write_strings_of(contents: &[u8], json: &mut Vec<u8>) {
    for (index, element) in Strings::new(contents).map_while(Result::ok).enumerate() {
        writer::comma(index, json);
        writer::string(&String::from_utf8_lossy(element), json);
    }
}

/// Writes elements of fixed size, with commas between them.
fn write_elements<T: AnyBitPattern>(contents: &[u8], json: &mut Vec<u8>, write: impl Fn(T, &mut Vec<u8>)) {
    for (index, element) in contents.chunks_exact(size_of::<T>()).enumerate() {
        writer::comma(index, json);
        write(bytemuck::pod_read_unaligned(element), json);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::OutputPlan;
    use crate::rest::generate;
    use crate::testing::{output, spec};
    use base::tensor::Shape;

    fn model(backend: &str) -> ModelSpec {
        let outputs = ["X", "Y"].map(|name| output(name, Datatype::Uint8, &[-1]));
        spec(0, vec![], outputs.into()).run_by(backend)
    }

    fn tensor(shape: &[i64], contents: &'static [u8]) -> Tensor {
        Tensor { datatype: Datatype::Uint8, shape: Shape::from_slice(shape), contents: Bytes::from_static(contents) }
    }

    fn body(reply: &Reply) -> String {
        String::from_utf8(reply.body.concat()).unwrap()
    }

    #[test]
    fn the_models_own_parameters_follow_those_that_the_response_repeats() {
        use ParameterValue::{Bool, Double, Int64, Text, Uint64};
        let own = [
            ("b", Bool(true)),
            ("d", Double(-0.5)),
            ("i", Int64(i64::MIN)),
            ("t\"", Text("\n".to_owned())),
            ("u", Uint64(u64::MAX)),
        ];
        let own = Parameters(own.map(|(name, value)| (name.to_owned(), value)).into());
        let written = r#""b":true,"d":-0.5,"i":-9223372036854775808,"t\"":"\n","u":18446744073709551615"#;
        let repeated = Some(Box::new(SequenceParameters { id: None, is_start: true, is_end: false }));
        for (repeated, before) in
            [(None, ""), (repeated, r#""sequence_id":0,"sequence_start":true,"sequence_end":false,"#)]
        {
            let plan = ResponsePlan { repeated, ..ResponsePlan::default() };
            let got = body(&encode(&model("python"), 1, &plan, Vec::new(), Some(&own)).unwrap());
            let head = r#"{"model_name":"m","model_version":"1","parameters":{"#;
            assert_eq!(got, format!(r#"{head}{before}{written}}},"outputs":[]}}"#));
        }
    }

    #[test]
    fn what_is_no_finite_number_is_written_so_that_the_answer_is_json_where_that_is_asked_for() {
        let floats = [("F", Datatype::Fp32), ("D", Datatype::Fp64)].map(|(name, kind)| output(name, kind, &[-1]));
        let model = spec(0, vec![], floats.into());
        let values = [f32::NAN, 1.5, f32::INFINITY, f32::NEG_INFINITY];
        let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let wide: Vec<u8> = values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
        let tensor = |datatype, contents: &[u8]| Tensor {
            datatype,
            shape: Shape::from_slice(&[4]),
            contents: Bytes::copy_from_slice(contents),
        };
        let own = Parameters(vec![("p".to_owned(), ParameterValue::Double(f64::NAN))]);
        let check = |non_finite, list: &str, nan: &str| {
            let planned = |index| OutputPlan { index, is_binary: false, is_base64: false, class_count: 0 };
            let outputs = [planned(0), planned(1)].into_iter().collect();
            let plan = ResponsePlan { outputs, non_finite, ..ResponsePlan::default() };
            let tensors = || vec![tensor(Datatype::Fp32, &contents), tensor(Datatype::Fp64, &wide)];
            let json = body(&encode(&model, 1, &plan, tensors(), Some(&own)).unwrap());
            let part = |name: &str, kind: &str| {
                format!(r#"{{"name":"{name}","datatype":"{kind}","shape":[4],"data":[{list}]}}"#)
            };
            let outputs = format!("{},{}", part("F", "FP32"), part("D", "FP64"));
            let head = r#"{"model_name":"m","model_version":"1","parameters":"#;
            assert_eq!(json, format!(r#"{head}{{"p":{nan}}},"outputs":[{outputs}]}}"#));
            let json = generate::encode(&model, 1, &plan, tensors(), Some(&own)).unwrap();
            let want = format!(r#"{{"D":[{list}],"F":[{list}],"model_name":"m","model_version":"1","p":{nan}}}"#);
            assert_eq!(String::from_utf8(json).unwrap(), want);
        };
        check(NonFinite::Literal, "NaN,1.5,Infinity,-Infinity", "NaN");
        check(NonFinite::Null, "null,1.5,null,null", "null");
        check(NonFinite::Text, r#""NaN",1.5,"Infinity","-Infinity""#, r#""NaN""#);
    }

    #[test]
    fn an_output_that_a_python_model_left_out_is_not_in_the_response_and_a_scalar_is() {
        let plan = |index| OutputPlan { index, is_binary: false, is_base64: false, class_count: 0 };
        let plan = ResponsePlan { outputs: [plan(0), plan(1)].into_iter().collect(), ..ResponsePlan::default() };
        let encoded = |backend, outputs| encode(&model(backend), 1, &plan, outputs, None).map(|reply| body(&reply));
        let with = |outputs: &str| Ok(format!(r#"{{"model_name":"m","model_version":"1","outputs":[{outputs}]}}"#));
        let scalar = r#"{"name":"Y","datatype":"UINT8","shape":[],"data":[7]}"#;
        assert_eq!(encoded("python", vec![tensor(&[], &[]), tensor(&[], &[7])]), with(scalar));
        assert_eq!(encoded("python", vec![tensor(&[], &[]), tensor(&[], &[])]), with(""));
        let empty = r#"{"name":"X","datatype":"UINT8","shape":[0],"data":[]}"#;
        assert_eq!(encoded("python", vec![tensor(&[0], &[]), tensor(&[], &[])]), with(empty));
        let few = Err(Error::internal("model 'm' did not produce every output that was asked for"));
        assert_eq!(encoded("identity", vec![tensor(&[], &[]), tensor(&[], &[7])]), few);
        assert_eq!(encoded("python", vec![tensor(&[0], &[])]), few);
    }
}

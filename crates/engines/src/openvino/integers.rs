//! Which models and requests OpenVINO computes exactly. Its CPU plugin holds 64-bit integers in 32 bits, UINT32 as INT32 and
//! FP64 as FP32, and computes part of its operators on integers in FP32 (`model::narrow`). A model for which that may give
//! other numbers than its file asks for is refused when it is loaded, or its requests have a limit.

use base::error::Error;
use base::tensor::Datatype;
use model::ModelSpec;
use model::narrow::{Graph, INT32_END};

use super::bind::InputPort;
use super::library::{OvModel, OvPort, OvSide};
use super::options::NARROW;

/// The limits of a model's inputs, in the configuration's order; `None` for an input that may bring any number.
pub(super) type IntegerLimits = Vec<Option<IntegerLimit>>;

/// The least and the greatest number that an input may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IntegerLimit {
    least: i64,
    most: i64,
}

/// Finds the limits of a model that was read and bound. `read` reads its graph, if that is known of files of its kind.
///
/// # Errors
/// The reason, if the model may give wrong numbers for any request.
pub(super) fn limits(
    model: &OvModel,
    inputs: &[InputPort],
    is_narrow: bool,
    read: impl FnOnce() -> Result<Option<Graph>, String>,
) -> Result<IntegerLimits, String> {
    let (taken, given) = (model.ports(OvSide::Input)?, model.ports(OvSide::Output)?);
    let narrowest = |port: &InputPort| limit(port.datatype, INT32_END);
    let all: IntegerLimits = inputs.iter().map(narrowest).collect();
    if is_narrow {
        // UINT32 has the same bits.
        let is_long = |port: &InputPort| matches!(port.datatype, Datatype::Int64 | Datatype::Uint64);
        return Ok(inputs.iter().zip(all).map(|(port, limit)| limit.filter(|_| is_long(port))).collect());
    }
    if taken.iter().chain(&given).any(|port| port.datatype == Some(Datatype::Fp64)) {
        return Err(refusal("it has FP64, which is computed in FP32"));
    }
    let is_beyond =
        |port: &OvPort| matches!(port.datatype, Some(Datatype::Int64 | Datatype::Uint32 | Datatype::Uint64));
    if !taken.iter().any(is_integer) && !given.iter().any(is_beyond) {
        return Ok(all);
    }
    let graph = read()?;
    let Some(graph) = graph else {
        return match taken.iter().any(|port| is_integer(port) && !is_small(port)) {
            true => Err(refusal("it takes integers, and what it does with them is not known of files of its kind")),
            false => Ok(all),
        };
    };
    let found = graph.limits().map_err(|why| refusal(&why))?;
    let least = found.iter().copied().min().unwrap_or(INT32_END);
    let of = |port: &InputPort| {
        let name = taken.get(port.index).and_then(|port| port.name.as_ref());
        let place = graph.inputs.iter().position(|(names, _)| name.is_some_and(|name| names.contains(name)));
        // Without its name it gets the limit that is right for all.
        let most = place.and_then(|place| found.get(place).copied()).unwrap_or(least);
        limit(port.datatype, most)
    };
    Ok(inputs.iter().map(of).collect())
}

fn refusal(why: &str) -> String {
    format!(
        "it may give wrong numbers there: {why}; serve it with ONNX Runtime or TensorFlow, or set its parameter {NARROW} to \
         YES to take what 32 bits give"
    )
}

fn is_integer(port: &OvPort) -> bool {
    is_small(port)
        || matches!(port.datatype, Some(Datatype::Int32 | Datatype::Int64 | Datatype::Uint32 | Datatype::Uint64))
}

fn is_small(port: &OvPort) -> bool {
    matches!(port.datatype, Some(Datatype::Int8 | Datatype::Int16 | Datatype::Uint8 | Datatype::Uint16))
}

/// The limit of an input whose numbers may be as large as `most`; `None` if its datatype has no larger ones.
fn limit(datatype: Datatype, most: i64) -> Option<IntegerLimit> {
    let (low, high) = match datatype {
        Datatype::Int8 => (i8::MIN.into(), i8::MAX.into()),
        Datatype::Int16 => (i16::MIN.into(), i16::MAX.into()),
        Datatype::Int32 => (i32::MIN.into(), i32::MAX.into()),
        Datatype::Int64 => (i64::MIN, i64::MAX),
        Datatype::Uint8 => (0, u8::MAX.into()),
        Datatype::Uint16 => (0, u16::MAX.into()),
        Datatype::Uint32 => (0, u32::MAX.into()),
        Datatype::Uint64 => (0, i64::MAX),
        // A float that is converted to the model's integers keeps its own range.
        Datatype::Bool | Datatype::Bytes | Datatype::Bf16 | Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 => {
            return None;
        }
    };
    let least = if most >= INT32_END { i64::from(i32::MIN).max(low) } else { low.max(-most) };
    (most < high).then_some(IntegerLimit { least, most })
}

impl IntegerLimit {
    /// Checks the numbers of an input.
    ///
    /// # Errors
    /// `InvalidArgument` with the input, the limit and a number beyond it.
    pub(super) fn check(self, spec: &ModelSpec, input: &str, datatype: Datatype, contents: &[u8]) -> Result<(), Error> {
        let Some(value) = self.first_beyond(datatype, contents) else { return Ok(()) };
        let Self { least, most } = self;
        Err(Error::invalid(format!(
            "input '{input}' of model '{}': OpenVINO computes the integers of this model exactly within [{least}, {most}] and \
             cannot take the value {value}; serve the model with ONNX Runtime or TensorFlow for others",
            spec.name
        )))
    }

    fn first_beyond(self, datatype: Datatype, contents: &[u8]) -> Option<i128> {
        macro_rules! find {
            ($number:ty) => {{
                let mut numbers =
                    contents.as_chunks().0.iter().map(|bytes| i128::from(<$number>::from_le_bytes(*bytes)));
                numbers.find(|number| *number < self.least.into() || *number > self.most.into())
            }};
        }
        match datatype {
            Datatype::Int8 => find!(i8),
            Datatype::Int16 => find!(i16),
            Datatype::Int32 => find!(i32),
            Datatype::Int64 => find!(i64),
            Datatype::Uint8 => find!(u8),
            Datatype::Uint16 => find!(u16),
            Datatype::Uint32 => find!(u32),
            Datatype::Uint64 => find!(u64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial::spec;

    #[test]
    fn a_number_beyond_an_inputs_limit_is_refused_with_the_input_and_the_limit() {
        let check = |datatype, most, contents: &[u8]| {
            let Some(limit) = limit(datatype, most) else { return "any number".to_owned() };
            let model = spec(0, &[], &[]);
            limit
                .check(&model, "x", datatype, contents)
                .err()
                .map_or("taken".to_owned(), |error| error.text().to_owned())
        };
        let refused = |least: i64, most: i64, value: &str| {
            format!(
                "input 'x' of model 'm': OpenVINO computes the integers of this model exactly within [{least}, {most}] and \
                 cannot take the value {value}; serve the model with ONNX Runtime or TensorFlow for others"
            )
        };
        let long = |value: i64| value.to_le_bytes();
        let least = i64::from(i32::MIN);
        assert_eq!(check(Datatype::Int64, INT32_END, &[long(INT32_END), long(least)].concat()), "taken");
        assert_eq!(check(Datatype::Int64, INT32_END, &long(INT32_END + 1)), refused(least, INT32_END, "2147483648"));
        assert_eq!(check(Datatype::Int64, INT32_END, &long(least - 1)), refused(least, INT32_END, "-2147483649"));
        assert_eq!(check(Datatype::Int64, 46_340, &long(-46_341)), refused(-46_340, 46_340, "-46341"));
        let most = u64::MAX.to_le_bytes();
        assert_eq!(check(Datatype::Uint64, INT32_END, &most), refused(0, INT32_END, "18446744073709551615"));
        assert_eq!(check(Datatype::Uint32, INT32_END, &[0xff; 4]), refused(0, INT32_END, "4294967295"));
        assert_eq!(check(Datatype::Uint8, 127, &[128]), refused(0, 127, "128"));
        assert_eq!(check(Datatype::Int32, INT32_END, &[0xff; 4]), "any number");
        assert_eq!(check(Datatype::Fp32, 127, &[0; 4]), "any number");
    }
}

//! Maps inputs of the configuration to arguments of `forward`, and outputs to elements of its
//! result: by Triton's rules (`model_instance_state.cc` of its PyTorch backend) and with its texts.
//! Two inputs for one argument, which Triton detects only by a wrong number, are refused.

use backend::text::{config_name, input_count_differs};
use base::error::Error;
use base::tensor::Datatype;
use model::{ModelSpec, TensorSpec};

use super::datatype::TorchType;

/// The kind of value that an argument of `forward` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardKind {
    /// Something that no input can be.
    Other,
    /// `List[str]`.
    Strings,
    /// `Tensor`.
    Tensor,
    /// `Dict[str, Tensor]`.
    TensorsByName,
}

/// An argument of `forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForwardArgument {
    /// Its name.
    pub(super) name: String,
    /// Its type, as TorchScript writes it.
    pub(super) type_name: String,
    /// Its kind.
    pub(super) kind: ForwardKind,
}

/// An input of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModuleInput {
    /// A batch input, which the server makes, by its index in the configuration's.
    Batch(usize),
    /// An input of the requests, by its index in the configuration.
    Request(usize),
}

/// The way in which inputs and outputs are passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorNames {
    /// The inputs in the order of the arguments; of a dictionary in that of the configuration.
    pub(super) inputs: Vec<ModuleInput>,
    /// The element of the result of `forward`, for each output of the configuration.
    pub(super) outputs: Vec<usize>,
    /// The warnings for the log.
    pub(super) warnings: Vec<String>,
}

/// An input of the configuration, from a request or from the server.
struct NamedInput<'a> {
    input: ModuleInput,
    name: &'a str,
    datatype: Datatype,
}

impl TensorNames {
    /// Binds the names of a configuration to the arguments of `forward` and to the number of its outputs, if that is known.
    ///
    /// # Errors
    ///
    /// If they do not fit.
    pub(super) fn bind(
        spec: &ModelSpec,
        arguments: &[ForwardArgument],
        output_count: Option<usize>,
    ) -> Result<Self, Error> {
        spec.inputs.iter().try_for_each(|input| check_datatype(spec, "input", input))?;
        spec.outputs.iter().try_for_each(|output| check_datatype(spec, "output", output))?;
        let mut warnings = Vec::new();
        let inputs = inputs(spec, arguments, &mut warnings)?;
        let outputs = outputs(spec, output_count, &mut warnings)?;
        Ok(Self { inputs, outputs, warnings })
    }
}

/// Refuses datatypes that PyTorch has no type for, and strings with more than one dimension.
fn check_datatype(spec: &ModelSpec, side: &str, tensor: &TensorSpec) -> Result<(), Error> {
    let (name, model) = (&tensor.name, &spec.name);
    if TorchType::of(tensor.datatype).is_none() {
        let datatype = config_name(tensor.datatype);
        return Err(Error::invalid(format!("unsupported datatype {datatype} for {side} '{name}' for model '{model}'")));
    }
    if tensor.is_optional {
        return Err(Error::invalid(format!(
            "input '{name}' of model '{model}' is optional, and a PyTorch model takes all its inputs: remove 'optional'"
        )));
    }
    if tensor.datatype == Datatype::Bytes && tensor.model_shape.len() > 1 {
        let hint = if spec.has_batch_axis() { ": give dims: [ 1 ] reshape { shape: [ ] }" } else { "" };
        return Err(Error::invalid(format!(
            "Triton only supports 1 dimensional List of String as {side} for '{name}' for model '{model}'{hint}"
        )));
    }
    Ok(())
}

fn inputs(
    spec: &ModelSpec,
    arguments: &[ForwardArgument],
    warnings: &mut Vec<String>,
) -> Result<Vec<ModuleInput>, Error> {
    let of_requests = spec.inputs.iter().enumerate().map(|(index, input)| NamedInput {
        input: ModuleInput::Request(index),
        name: &input.name,
        datatype: input.datatype,
    });
    let of_batches = spec.batch_inputs.iter().enumerate().map(|(index, input)| NamedInput {
        input: ModuleInput::Batch(index),
        name: &input.name,
        datatype: input.datatype,
    });
    let given: Vec<_> = of_requests.chain(of_batches).collect();
    if given.is_empty() {
        let text = "model configuration must contain at least one input, none were specified.";
        return Err(Error::invalid(format!("model '{}': {text}", spec.name)));
    }
    if let [ForwardArgument { kind: ForwardKind::TensorsByName, .. }] = arguments {
        if let Some(input) = given.iter().find(|input| input.datatype == Datatype::Bytes) {
            return Err(kind_differs(spec, input, "Tensor"));
        }
        return Ok(given.iter().map(|input| input.input).collect());
    }
    check_arguments(arguments)?;
    if given.len() != arguments.len() {
        return Err(input_count_differs(spec, given.len(), arguments.len()));
    }
    let places = places(spec, &given, arguments, warnings)?;
    let mut ordered = vec![None; arguments.len()];
    for (input, place) in given.iter().zip(places) {
        let Some((argument, taken)) = arguments.get(place).zip(ordered.get_mut(place)) else {
            let (name, model, count) = (input.name, &spec.name, arguments.len());
            return Err(Error::invalid(format!(
                "unable to load model '{model}', input '{name}' is argument {place}, and the model's forward has {count} \
                 (they count from 0)"
            )));
        };
        if (argument.kind == ForwardKind::Strings) != (input.datatype == Datatype::Bytes) {
            return Err(kind_differs(spec, input, &argument.type_name));
        }
        if taken.replace(input.input).is_some() {
            let (name, model) = (input.name, &spec.name);
            return Err(Error::invalid(format!(
                "unable to load model '{model}', input '{name}' is argument {place}, which another input is already"
            )));
        }
    }
    Ok(ordered.into_iter().flatten().collect())
}

/// Refuses arguments that no input can be, in Triton's words.
fn check_arguments(arguments: &[ForwardArgument]) -> Result<(), Error> {
    // Triton checks all but the first.
    if arguments.iter().skip(1).any(|argument| argument.type_name.starts_with("Dict")) {
        return Err(Error::invalid(
            "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is supported.",
        ));
    }
    let is_wrong =
        |argument: &&ForwardArgument| matches!(argument.kind, ForwardKind::Other | ForwardKind::TensorsByName);
    match arguments.iter().find(is_wrong) {
        None => Ok(()),
        Some(argument) => Err(Error::invalid(format!(
            "An input of type '{}' was detected in the model. Only a single input of type Dict(str, Tensor) or input(s) of \
             type Tensor are supported.",
            argument.type_name
        ))),
    }
}

fn kind_differs(spec: &ModelSpec, input: &NamedInput<'_>, type_name: &str) -> Error {
    let (model, name, datatype) = (&spec.name, input.name, config_name(input.datatype));
    Error::invalid(format!(
        "unable to load model '{model}', configuration expects datatype {datatype} for input '{name}', model provides an \
         argument of type '{type_name}'"
    ))
}

/// The place of each input among the arguments.
fn places(
    spec: &ModelSpec,
    given: &[NamedInput<'_>],
    arguments: &[ForwardArgument],
    warnings: &mut Vec<String>,
) -> Result<Vec<usize>, Error> {
    let by_argument = |input: &NamedInput<'_>| arguments.iter().position(|argument| argument.name == input.name);
    let all = |place: &dyn Fn(&NamedInput<'_>) -> Option<usize>| given.iter().map(place).collect::<Option<Vec<_>>>();
    if let Some(places) = all(&by_argument).or_else(|| all(&|input| index_in(input.name))) {
        return Ok(places);
    }
    // The inputs that carry the start or the state of a sequence are named by their index, however
    // the others are named.
    if let Some(places) = all(&|input| by_argument(input).or_else(|| index_in(input.name))) {
        let mut distinct = places.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() == places.len() {
            return Ok(places);
        }
    }
    let is_strange = |input: &&NamedInput<'_>| by_argument(input).is_none() && index_in(input.name).is_none();
    let strange = given.iter().find(is_strange).map_or("", |input| input.name);
    warnings.push(format!(
        "input '{strange}' or previous input(s) are neither an input argument to the model '{}' nor do they follow the \
         <name>__<index> naming convention. Falling back to enforcing strict ordering from model configuration.",
        spec.name
    ));
    Ok((0..given.len()).collect())
}

fn outputs(spec: &ModelSpec, output_count: Option<usize>, warnings: &mut Vec<String>) -> Result<Vec<usize>, Error> {
    if spec.outputs.is_empty() {
        let text = "model configuration must contain at least one output, none were specified.";
        return Err(Error::invalid(format!("model '{}': {text}", spec.name)));
    }
    let by_index = spec.outputs.iter().map(|output| index_in(&output.name)).collect::<Option<Vec<_>>>();
    let outputs = by_index.unwrap_or_else(|| {
        let strange = spec.outputs.iter().find(|output| index_in(&output.name).is_none());
        warnings.push(format!(
            "output '{}' or previous output(s) of the model '{}' do not follow the <name>__<index> naming convention. \
             Falling back to enforcing strict ordering from model configuration.",
            strange.map_or("", |output| &output.name),
            spec.name
        ));
        (0..spec.outputs.len()).collect()
    });
    if let Some(count) = output_count {
        let beyond = spec.outputs.iter().zip(&outputs).find(|(_, index)| **index >= count);
        if let Some((output, _)) = beyond {
            return Err(Error::invalid(no_such_output(&output.name, count)));
        }
    }
    Ok(outputs)
}

/// The text of an output that the model does not return, in Triton's words.
pub(super) fn no_such_output(name: &str, count: usize) -> String {
    format!(
        "The output {name} in the model configuration refers to an output index which doesn't exist. This model has {count} \
         outputs"
    )
}

/// The index in a name `<any>__<digits>`; as in Triton the first two underscores count.
fn index_in(name: &str) -> Option<usize> {
    let (_, digits) = name.split_once("__")?;
    // Triton's atoi reads no digits as 0.
    match digits {
        "" => Some(0),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial;

    const FP32: Datatype = Datatype::Fp32;

    fn argument(name: &str) -> ForwardArgument {
        let (name, kind) = name.split_once(':').unwrap_or((name, "Tensor"));
        let (type_name, kind) = match kind {
            "Tensor" => ("Tensor", ForwardKind::Tensor),
            "strings" => ("List[str]", ForwardKind::Strings),
            "dict" => ("Dict[str, Tensor]", ForwardKind::TensorsByName),
            other => (other, ForwardKind::Other),
        };
        ForwardArgument { name: name.to_owned(), type_name: type_name.to_owned(), kind }
    }

    fn bind(inputs: &str, arguments: &str, outputs: &str, count: Option<usize>) -> Result<TensorNames, String> {
        let tensor = |name: &'static str| match name.strip_suffix(":strings") {
            Some(name) => (name, Datatype::Bytes, &[1][..]),
            None => (name, FP32, &[4][..]),
        };
        let list =
            |names: &str| names.split_whitespace().map(|name| tensor(name.to_owned().leak())).collect::<Vec<_>>();
        let spec = trial::spec(0, &list(inputs), &list(outputs));
        let arguments: Vec<_> = arguments.split_whitespace().map(argument).collect();
        TensorNames::bind(&spec, &arguments, count).map_err(|error| error.text().to_owned())
    }

    #[test]
    fn inputs_are_arguments_by_name_or_by_index_or_by_their_order() {
        let check = |inputs: &str, arguments: &str, want: &[usize], warns: bool| {
            let names = bind(inputs, arguments, "y__0", None).unwrap();
            let got: Vec<_> = want.iter().map(|index| ModuleInput::Request(*index)).collect();
            assert_eq!((names.inputs, !names.warnings.is_empty()), (got, warns), "{inputs} | {arguments}");
        };
        check("x", "x", &[0], false);
        check("b a", "a b", &[1, 0], false);
        check("INPUT__1 INPUT__0", "a b", &[1, 0], false);
        check("x__ y__1", "a b", &[0, 1], false);
        check("b a__0", "a b", &[1, 0], false);
        check("one two", "a b", &[0, 1], true);
        check("b two", "a b", &[0, 1], true);
        check("in__a in__b", "a b", &[0, 1], true);
        check("z y", "d:dict", &[0, 1], false);
        check("t:strings x__1", "t:strings x", &[0, 1], false);
    }

    #[test]
    fn outputs_are_elements_by_index_or_by_their_order() {
        let check = |outputs: &str, want: &[usize], warns: bool| {
            let names = bind("x", "x", outputs, Some(2)).unwrap();
            assert_eq!((names.outputs.as_slice(), !names.warnings.is_empty()), (want, warns), "{outputs}");
        };
        check("OUTPUT__1 OUTPUT__0", &[1, 0], false);
        check("y__1", &[1], false);
        check("best y__0", &[0, 1], true);
    }

    #[test]
    fn what_does_not_fit_is_refused_in_tritons_words() {
        let check = |inputs: &str, arguments: &str, outputs: &str, want: &str| {
            assert_eq!(bind(inputs, arguments, outputs, Some(1)), Err(want.to_owned()), "{inputs} | {arguments}");
        };
        check("x", "x y", "o__0", "unable to load model 'm', configuration expects 1 inputs, model provides 2");
        let want = "An input of type 'int' was detected in the model. Only a single input of type Dict(str, Tensor) or \
                    input(s) of type Tensor are supported.";
        check("x n", "x n:int", "o__0", want);
        let want = "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is \
                    supported.";
        check("x n", "x d:dict", "o__0", want);
        let want = "The output o__1 in the model configuration refers to an output index which doesn't exist. This model \
                    has 1 outputs";
        check("x", "x", "o__1", want);
        let want = "unable to load model 'm', input 'b__0' is argument 0, which another input is already";
        check("a__0 b__0", "x y", "o__0", want);
        let want =
            "unable to load model 'm', input 'b__2' is argument 2, and the model's forward has 2 (they count from 0)";
        check("a__0 b__2", "x y", "o__0", want);
        let want = "unable to load model 'm', configuration expects datatype TYPE_STRING for input 'x', model provides an \
                    argument of type 'Tensor'";
        check("x:strings", "x", "o__0", want);
        check("x:strings", "d:dict", "o__0", want);
        let want = "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'x', model provides an \
                    argument of type 'List[str]'";
        check("x", "x:strings", "o__0", want);
        assert!(bind("", "x", "o__0", None).unwrap_err().contains("at least one input"));
        assert!(bind("x", "x", "", None).unwrap_err().contains("at least one output"));
    }

    #[test]
    fn datatypes_that_torch_lacks_and_strings_in_rows_are_refused() {
        let refused = |rows_max, input: trial::TrialTensor<'_>, output: trial::TrialTensor<'_>| {
            let spec = trial::spec(rows_max, &[input], &[output]);
            TensorNames::bind(&spec, &[argument("x")], None).unwrap_err().text().to_owned()
        };
        let want = "unsupported datatype TYPE_UINT16 for input 'x' for model 'm'";
        assert_eq!(refused(0, ("x", Datatype::Uint16, &[1]), ("y", FP32, &[1])), want);
        let want = "unsupported datatype TYPE_BF16 for output 'y' for model 'm'";
        assert_eq!(refused(0, ("x", FP32, &[1]), ("y", Datatype::Bf16, &[1])), want);
        let want = "Triton only supports 1 dimensional List of String as output for 'y' for model 'm': give dims: [ 1 ] \
                    reshape { shape: [ ] }";
        assert_eq!(refused(4, ("x", FP32, &[1]), ("y", Datatype::Bytes, &[1])), want);
    }
}

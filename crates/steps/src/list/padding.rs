//! The padding of the model's inputs: rows of different lengths may share a run of the model, each padded to the longest. A step
//! before the model says it ([`Step::padding`](crate::Step::padding)), or the step of the model:
//!
//! ```json
//! {"step": "model", "padding": {"inputs": {"features": 0, "mask": 0}, "lengths": "frames", "side": "right", "multiple_of": 8}}
//! ```

use base::error::Error;
use wire::placed::{PlacedMember, PlacedValue};

use super::{ListedWork, StepList};
use crate::fields::line;
use crate::limits::{LIST_TENSORS_MAX, PADDING_MULTIPLE_MAX};

/// The padding of the model's inputs along their second dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct ListPadding {
    /// The names of the padded inputs, and the number that pads each. Others have the same shape in each row.
    pub inputs: Vec<(String, f64)>,
    /// The width of a row is a multiple of this.
    pub multiple: u32,
    /// True if padding comes before the row.
    pub is_left: bool,
    lengths: PaddingLengths,
}

impl ListPadding {
    /// Returns true if the step of the model says it.
    pub const fn is_declared(&self) -> bool {
        matches!(self.lengths, PaddingLengths::Tensor(_))
    }
}

/// The place of the lengths of the rows without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaddingLengths {
    /// An output port of a step.
    Port { step: usize, port: usize },
    /// A tensor of the list.
    Tensor(usize),
}

/// The description of the parameter, for the schema.
pub(crate) const ABOUT: &str = "Rows of different lengths may share a run of the model: the inputs, with the number that pads the second \
                                dimension of each, and the tensor with the lengths of the rows. A step that pads, such as `tokenize`, \
                                says it by itself.";

impl StepList {
    /// The padding of the model's inputs; `None` if nothing says it.
    pub const fn padding(&self) -> Option<&ListPadding> {
        self.padding.as_ref()
    }

    pub(super) fn padding_lengths(&self) -> Option<PaddingLengths> {
        self.padding.as_ref().map(|padding| padding.lengths)
    }

    /// The padding of the only step before the model that pads; `None` if another step writes one of its tensors too.
    pub(super) fn padding_of_steps(&self) -> Option<ListPadding> {
        let before = self.steps.get(..self.model?)?;
        let mut padded = before.iter().enumerate().filter_map(|(index, step)| match &step.work {
            ListedWork::Own(_, work) => Some((index, step, work.padding()?)),
            ListedWork::Call(_) => None,
        });
        let (index, step, padding) = padded.next().filter(|_| padded.next().is_none())?;
        let of_ports = step.outputs.iter().zip(&padding.numbers);
        let written: Vec<_> = of_ports.filter_map(|(tensor, number)| Some(((*tensor)?, (*number)?))).collect();
        let is_sole = |tensor: &usize| {
            let writers = before.iter().flat_map(|step| step.outputs.iter().flatten());
            writers.filter(|other| *other == tensor).count() == 1
        };
        if written.is_empty() || !written.iter().all(|(tensor, _)| is_sole(tensor)) {
            return None;
        }
        let named = |(tensor, number): &(usize, f64)| Some((self.names.get(*tensor)?.clone(), *number));
        Some(ListPadding {
            inputs: written.iter().filter_map(named).collect(),
            multiple: padding.multiple.max(1),
            is_left: padding.is_left,
            lengths: PaddingLengths::Port { step: index, port: padding.lengths },
        })
    }

    /// Reads the members of the step of the model. The tensor of lengths is one that it reads.
    pub(super) fn declared_padding(
        &mut self,
        text: &str,
        members: &[PlacedMember],
    ) -> Result<Option<ListPadding>, Error> {
        let wrong = |offset, why: &str| Error::invalid(format!("line {}: {why}", line(text, offset)));
        let mut found = None;
        for PlacedMember { name, offset, value } in members.iter().filter(|member| member.name != "step") {
            if name != "padding" {
                let why = format!("\"{name}\": the step \"model\" has no ports, and the parameter \"padding\"");
                return Err(wrong(*offset, &why));
            }
            let PlacedValue::Table(fields) = &value.value else {
                return Err(wrong(*offset, "\"padding\" must be an object with \"inputs\" and \"lengths\""));
            };
            found = Some((*offset, fields));
        }
        let Some((offset, fields)) = found else { return Ok(None) };
        let (mut inputs, mut lengths, mut multiple, mut is_left) = (Vec::new(), None, 1, false);
        for PlacedMember { name, offset, value } in fields {
            let fault = |why: &str| wrong(*offset, &format!("\"padding\": \"{name}\" {why}"));
            match (name.as_str(), &value.value) {
                ("inputs", PlacedValue::Table(numbers)) => {
                    let number = |member: &PlacedMember| match &member.value.value {
                        PlacedValue::Number(number) => Some((member.name.clone(), number.parse::<f64>().ok()?)),
                        _ => None,
                    };
                    let read = numbers.iter().map(number).collect::<Option<Vec<_>>>();
                    inputs = read.ok_or_else(|| fault("must have a number for each input"))?;
                }
                ("lengths", PlacedValue::String(tensor)) => lengths = Some(tensor.clone()),
                ("side", PlacedValue::String(side)) if side == "left" || side == "right" => is_left = side == "left",
                ("multiple_of", PlacedValue::Number(number)) => {
                    let number =
                        number.parse::<u32>().ok().filter(|number| (1..=PADDING_MULTIPLE_MAX).contains(number));
                    let why = format!("must be an integer from 1 to {PADDING_MULTIPLE_MAX}");
                    multiple = number.ok_or_else(|| fault(&why))?;
                }
                _ => {
                    return Err(fault(
                        "is wrong: known are \"inputs\" (an object from inputs to numbers), \"lengths\" (the name of a \
                         tensor), \"side\" (\"left\" or \"right\") and \"multiple_of\"",
                    ));
                }
            }
        }
        let Some(lengths) = lengths.filter(|_| (1..=LIST_TENSORS_MAX).contains(&inputs.len())) else {
            return Err(wrong(
                offset,
                &format!("\"padding\" needs \"inputs\", 1 to {LIST_TENSORS_MAX}, and \"lengths\""),
            ));
        };
        let lengths = PaddingLengths::Tensor(self.index_of_read(lengths));
        Ok(Some(ListPadding { inputs, multiple, is_left, lengths }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::tensors::of_floats;
    use crate::trial_tokenizer::tokenizer_json;

    fn read(steps: &str) -> Result<StepList, Error> {
        let read_file = |_: &str, _| Ok(tokenizer_json("").into_bytes());
        StepList::read(&format!("{{\"steps\": [{steps}]}}"), &read_file)
    }

    const TOKENIZE: &str = r#"{"step": "tokenize", "input": "text", "file": "t.json", "pad_token": "a",
        "outputs": {"ids": "input_ids", "mask": "attention_mask", "type_ids": "kinds", "special_mask": "special"}"#;

    #[test]
    fn a_step_that_pads_says_how_and_tells_lengths_that_nothing_connects() {
        let list = read(&format!("{TOKENIZE}}}, {{\"step\": \"model\"}}")).unwrap();
        let padding = list.padding().unwrap();
        let inputs: Vec<_> = padding.inputs.iter().map(|(name, number)| (name.as_str(), *number)).collect();
        assert_eq!(inputs, [("input_ids", 7.0), ("attention_mask", 0.0), ("kinds", 0.0), ("special", 1.0)]);
        assert_eq!((padding.multiple, padding.is_left), (1, false));
        let texts = crate::tensors::of_strings(&[2], ["hello a b", "a"]);
        let tensors = list.begin(|_| Some(texts.clone())).unwrap();
        assert_eq!(tensors.row_lengths(), Some(vec![5, 3]));
        let left = r#", "padding_side": "left", "pad_to_multiple_of": 8}, {"step": "model"}"#;
        let list = read(&format!("{TOKENIZE}{left}")).unwrap();
        assert_eq!(list.padding().map(|padding| (padding.multiple, padding.is_left)), Some((8, true)));
    }

    #[test]
    fn fixed_widths_two_tokenizers_and_tensors_written_twice_have_no_padding() {
        let check = |steps: &str| assert_eq!(read(steps).unwrap().padding(), None, "{steps}");
        let model = r#"{"step": "model"}"#;
        check(&format!(r#"{TOKENIZE}, "padding": "max_length", "max_length": 9}}, {model}"#));
        check(&format!(r#"{TOKENIZE}, "padding": "off"}}, {model}"#));
        check(&format!("{TOKENIZE}}}, {TOKENIZE}}}, {model}"));
        check(&format!(
            r#"{TOKENIZE}}}, {{"step": "cast", "input": "x", "output": "input_ids", "datatype": "INT64"}}, {model}"#
        ));
        check(&format!("{model}, {TOKENIZE}}}"));
        check(&format!("{TOKENIZE}}}"));
    }

    #[test]
    fn the_step_of_the_model_says_how_its_inputs_are_padded() {
        let list = read(
            r#"{"step": "model", "padding": {"inputs": {"features": -1.5, "mask": 0}, "lengths": "frames",
            "side": "left", "multiple_of": 8}}"#,
        );
        let list = list.unwrap();
        let padding = list.padding().unwrap();
        assert_eq!(padding.inputs, [("features".to_owned(), -1.5), ("mask".to_owned(), 0.0)]);
        assert_eq!((padding.multiple, padding.is_left), (8, true));
        assert_eq!(list.inputs().collect::<Vec<_>>(), ["frames"]);
        let lengths = crate::tensors::of_numbers(base::tensor::Datatype::Int32, &[2], vec![3_i32, 9]);
        assert_eq!(list.begin(|_| Some(lengths.clone())).unwrap().row_lengths(), Some(vec![3, 9]));
        let wrong = of_floats(&[1], vec![1.0]);
        assert_eq!(list.begin(|_| Some(wrong.clone())).unwrap().row_lengths(), None);
        let check = |padding: &str, want: &str| {
            let got = read(&format!("{{\"step\": \"model\",\n\"padding\": {padding}}}")).err().unwrap();
            assert_eq!(got.text(), format!("step 1: line 2: {want}"));
        };
        check("1", "\"padding\" must be an object with \"inputs\" and \"lengths\"");
        let needs = "\"padding\" needs \"inputs\", 1 to 256, and \"lengths\"";
        check("{}", needs);
        check(r#"{"inputs": {}, "lengths": "n"}"#, needs);
        check(r#"{"inputs": {"x": "0"}}"#, "\"padding\": \"inputs\" must have a number for each input");
        check(r#"{"multiple_of": 0}"#, "\"padding\": \"multiple_of\" must be an integer from 1 to 65536");
        let known = "is wrong: known are \"inputs\" (an object from inputs to numbers), \"lengths\" (the name of a tensor), \
                     \"side\" (\"left\" or \"right\") and \"multiple_of\"";
        check(r#"{"side": "up"}"#, &format!("\"padding\": \"side\" {known}"));
        check(r#"{"axis": 1}"#, &format!("\"padding\": \"axis\" {known}"));
    }
}

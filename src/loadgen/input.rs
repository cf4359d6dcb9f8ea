//! The input tensors of requests: random, zero, or from files. Each sample is one row; a batch is made of consecutive
//! samples, as in perf_analyzer. Pure: the contents of files come in as bytes.

use bytes::Bytes;

use crate::loadgen::description::{InputDescription, ModelDescription};
use crate::loadgen::random::Random;
use crate::tensor::{Datatype, Tensor, byte_size, element_count, strings};

/// The tensors of one row, in the order of the model's inputs; `None` for an optional input that is
/// left out.
pub type InputSample = Vec<Option<Tensor>>;

/// All samples, in streams. A sequence takes the samples of one stream in order; requests without a sequence take all
/// samples in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// At least one stream, each with at least one sample.
    pub streams: Vec<Vec<InputSample>>,
    /// True if requests have a batch axis.
    pub is_batching: bool,
}

/// The values of the flags about inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputPlan {
    /// Rows in a request.
    pub rows: usize,
    /// The shapes of `--shape`, by name of the input, without the batch axis.
    pub shapes: Vec<(String, Vec<i64>)>,
    /// The contents of every string; random if `None`.
    pub string: Option<String>,
    /// Characters of a random string.
    pub string_length: usize,
    /// The seed of random contents.
    pub seed: u64,
}

/// The contents of inputs without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFill {
    /// Random, from the seed.
    Random,
    /// Zeros and empty strings.
    Zero,
}

/// A model's inputs, each with the shape of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputLayout<'a> {
    /// The inputs with their shapes without the batch axis; -1 for a dimension that is still unknown.
    pub inputs: Vec<(&'a InputDescription, Vec<i64>)>,
    /// True if requests have a batch axis.
    pub is_batching: bool,
    /// Names of the optional inputs.
    pub optional: &'a [String],
}

impl<'a> InputLayout<'a> {
    /// Checks a plan against the model.
    ///
    /// # Errors
    /// A line for the user: a shape or a number of rows does not fit the model.
    pub fn new(model: &'a ModelDescription, plan: &InputPlan) -> Result<Self, String> {
        let given =
            |input: &InputDescription| plan.shapes.iter().find(|(name, _)| *name == input.name).map(|(_, shape)| shape);
        if let Some((name, _)) =
            plan.shapes.iter().find(|(name, _)| model.inputs.iter().all(|input| input.name != *name))
        {
            return Err(format!("--shape names '{name}', which the model has not; {}", names(model)));
        }
        // Without a configuration a leading -1 may be a batch axis or not. A `--shape` with all the dimensions decides
        // that it is not.
        let is_whole = |input: &InputDescription| given(input).is_some_and(|shape| shape.len() == input.shape.len());
        let is_batching = model.is_batching() && (model.config.is_some() || !model.inputs.iter().any(is_whole));
        let rows_max = model.config.as_ref().map_or(i64::MAX, |config| config.rows_max);
        let rows = i64::try_from(plan.rows).unwrap_or(i64::MAX);
        if rows > 1 && !is_batching {
            return Err(format!("-b {rows}: the model takes no batches"));
        }
        if is_batching && rows > rows_max {
            return Err(format!("-b {rows}: the model takes at most {rows_max} rows"));
        }
        let shape_of = |input: &'a InputDescription| {
            let own = input.shape.get(usize::from(is_batching)..).unwrap_or_default();
            let shape = given(input).map_or(own, Vec::as_slice);
            let fits = shape.len() == own.len() && shape.iter().zip(own).all(|(a, b)| a == b || *b == -1);
            if fits { Ok((input, shape.to_vec())) } else { Err(misfit(input, shape, own)) }
        };
        Ok(Self {
            inputs: model.inputs.iter().map(shape_of).collect::<Result<_, _>>()?,
            is_batching,
            optional: model.config.as_ref().map_or(&[], |config| &config.optional),
        })
    }

    /// Generates one sample, without the optional inputs to which the plan gives no shape.
    ///
    /// # Errors
    /// A line for the user, when the shape of an input is not known.
    pub fn fill(&self, fill: InputFill, plan: &InputPlan) -> Result<Inputs, String> {
        let mut random = Random::new(plan.seed);
        let mut sample = InputSample::new();
        for (input, shape) in &self.inputs {
            let is_given = plan.shapes.iter().any(|(name, _)| *name == input.name);
            if self.optional.contains(&input.name) && !is_given {
                sample.push(None);
                continue;
            }
            let count = self.count(input, shape)?;
            let contents = match (fill, input.datatype, &plan.string) {
                (_, Datatype::Bytes, Some(text)) => repeat(count, || text.clone().into_bytes()),
                (InputFill::Zero, Datatype::Bytes, None) => repeat(count, Vec::new),
                (InputFill::Random, Datatype::Bytes, None) => {
                    repeat(count, || letters(plan.string_length, &mut random))
                }
                (InputFill::Zero, datatype, _) => vec![0; count * datatype.size().unwrap_or(0)],
                (InputFill::Random, datatype, _) => (0..count).flat_map(|_| number(datatype, &mut random)).collect(),
            };
            sample.push(Some(tensor(input, shape, contents)));
        }
        Ok(Inputs { streams: vec![vec![sample]], is_batching: self.is_batching })
    }

    /// Makes one sample from the files of a folder, one for each input, with its name: the bytes of one row, or for
    /// strings one on each line. `read` reads a file of the folder.
    ///
    /// # Errors
    /// A line for the user: the file of a required input cannot be read, or a file has the wrong size.
    pub fn from_files(&self, read: impl Fn(&str) -> Result<Vec<u8>, String>) -> Result<Inputs, String> {
        let mut sample = InputSample::new();
        for (input, shape) in &self.inputs {
            let bytes = match read(&input.name) {
                Ok(bytes) => bytes,
                Err(_) if self.optional.contains(&input.name) => {
                    sample.push(None);
                    continue;
                }
                Err(why) => return Err(why),
            };
            let contents = if input.datatype == Datatype::Bytes {
                let mut contents = Vec::new();
                let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
                lines.split(|byte| *byte == b'\n').for_each(|line| strings::encode(line, &mut contents));
                contents
            } else {
                bytes
            };
            sample.push(Some(self.checked(input, shape, contents)?));
        }
        Ok(Inputs { streams: vec![vec![sample]], is_batching: self.is_batching })
    }

    /// Makes one sample of one file, for a model with one input: for strings the one string, such as an image, else the
    /// bytes of a row.
    ///
    /// # Errors
    /// A line for the user: the model has several inputs, or the file has the wrong size.
    pub fn from_binary(&self, bytes: Vec<u8>) -> Result<Inputs, String> {
        let mut required = self.inputs.iter().filter(|(input, _)| !self.optional.contains(&input.name));
        let ((input, shape), None) = (required.next().ok_or("the model has no input")?, required.next()) else {
            return Err(
                "a file that is no JSON is the input of a model with one input; name a folder with a file for \
                        each input"
                    .to_owned(),
            );
        };
        let contents = self.one_string(input, shape, &bytes).unwrap_or(bytes);
        let shape = one_element(shape);
        let tensor = self.checked(input, &shape, contents)?;
        let sample = self.inputs.iter().map(|(other, _)| (other.name == input.name).then(|| tensor.clone())).collect();
        Ok(Inputs { streams: vec![vec![sample]], is_batching: self.is_batching })
    }

    /// Returns the contents of an input that takes one string; `None` for another input.
    pub fn one_string(&self, input: &InputDescription, shape: &[i64], string: &[u8]) -> Option<Vec<u8>> {
        let is_one = input.datatype == Datatype::Bytes && element_count(&one_element(shape)) == Ok(1);
        is_one.then(|| {
            let mut contents = Vec::new();
            strings::encode(string, &mut contents);
            contents
        })
    }

    /// Makes a tensor from contents that may not fit its shape.
    ///
    /// # Errors
    /// A line for the user, when the size of the contents, or the number of strings, is not that of the shape.
    pub fn checked(
        &self,
        input: &InputDescription,
        shape: &[i64],
        contents: impl Into<Bytes>,
    ) -> Result<Tensor, String> {
        let (contents, count) = (contents.into(), self.count(input, shape)?);
        let name = &input.name;
        match byte_size(input.datatype, shape) {
            Ok(Some(size)) if size != contents.len() => {
                Err(format!("input '{name}' of shape {shape:?} needs {size} bytes, got {}", contents.len()))
            }
            Ok(None) => {
                let read: Result<Vec<_>, _> = strings::Strings::new(&contents).collect();
                match read {
                    Err(_) => {
                        Err(format!("input '{name}' is not a list of strings, each behind its length in 4 bytes"))
                    }
                    Ok(read) if read.len() != count => {
                        Err(format!("input '{name}' of shape {shape:?} needs {count} strings, got {}", read.len()))
                    }
                    Ok(_) => Ok(tensor(input, shape, contents)),
                }
            }
            _ => Ok(tensor(input, shape, contents)),
        }
    }

    /// The number of elements of a shape.
    ///
    /// # Errors
    /// A line for the user, when the shape has a dimension of -1.
    pub fn count(&self, input: &InputDescription, shape: &[i64]) -> Result<usize, String> {
        element_count(shape).map_err(|_| {
            format!(
                "input '{}' has the variable shape {shape:?}: give it one with --shape {}:…",
                input.name, input.name
            )
        })
    }
}

impl Inputs {
    /// The tensors of a request, each with the index of its input. The first row is sample `index` of the stream, the other
    /// rows are the samples behind it, starting again at the stream's end.
    ///
    /// # Errors
    /// A line for the user, when the rows differ in their inputs or shapes.
    pub fn batch(&self, stream: usize, index: usize, rows: usize) -> Result<Vec<(usize, Tensor)>, String> {
        let samples = self.streams.get(stream).filter(|samples| !samples.is_empty()).ok_or("there are no inputs")?;
        let row = |offset: usize| samples.get((index + offset) % samples.len());
        let first = row(0).ok_or("there are no inputs")?;
        let mut batch = Vec::new();
        for (input, tensor) in first.iter().enumerate().filter_map(|(input, tensor)| Some((input, tensor.as_ref()?))) {
            if !self.is_batching {
                batch.push((input, tensor.clone()));
                continue;
            }
            let mut contents = Vec::with_capacity(tensor.contents.len() * rows);
            for offset in 0..rows {
                let other = row(offset).and_then(|row| row.get(input)?.as_ref());
                let other = other.filter(|other| other.shape == tensor.shape);
                let other = other.ok_or("rows of one batch must have the same inputs and shapes; use -b 1")?;
                contents.extend_from_slice(&other.contents);
            }
            let rows = i64::try_from(rows).unwrap_or(i64::MAX);
            let shape = std::iter::once(rows).chain(tensor.shape.iter().copied()).collect();
            batch.push((input, Tensor { datatype: tensor.datatype, shape, contents: contents.into() }));
        }
        Ok(batch)
    }
}

fn tensor(input: &InputDescription, shape: &[i64], contents: impl Into<Bytes>) -> Tensor {
    Tensor { datatype: input.datatype, shape: shape.iter().copied().collect(), contents: contents.into() }
}

/// Returns a shape whose variable dimensions are 1.
pub fn one_element(shape: &[i64]) -> Vec<i64> {
    shape.iter().map(|size| if *size == -1 { 1 } else { *size }).collect()
}

fn misfit(input: &InputDescription, shape: &[i64], own: &[i64]) -> String {
    format!("--shape {}: {shape:?} does not fit the model's {own:?} (the batch axis is left out)", input.name)
}

fn names(model: &ModelDescription) -> String {
    let names: Vec<_> = model.inputs.iter().map(|input| input.name.as_str()).collect();
    format!("its inputs: {}", names.join(", "))
}

fn repeat(count: usize, mut make: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    let mut contents = Vec::new();
    (0..count).for_each(|_| strings::encode(&make(), &mut contents));
    contents
}

fn letters(length: usize, random: &mut Random) -> Vec<u8> {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let letter = |random: &mut Random| usize::try_from(random.next_below(62)).ok().and_then(|at| LETTERS.get(at));
    (0..length).filter_map(|_| letter(random).copied()).collect()
}

/// One random number, little-endian: floats from 0 to 1, integers from 0 to 127, which fit every type and most
/// vocabularies.
fn number(datatype: Datatype, random: &mut Random) -> Vec<u8> {
    let small = random.next_below(128) as u8;
    let unit = random.next_unit();
    match datatype {
        Datatype::Bool => vec![small & 1],
        Datatype::Fp16 => half::f16::from_f64(unit).to_le_bytes().to_vec(),
        Datatype::Bf16 => half::bf16::from_f64(unit).to_le_bytes().to_vec(),
        Datatype::Fp32 => (unit as f32).to_le_bytes().to_vec(),
        Datatype::Fp64 => unit.to_le_bytes().to_vec(),
        integer => {
            let mut bytes = vec![0; integer.size().unwrap_or(0)];
            bytes.iter_mut().take(1).for_each(|first| *first = small);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::description::DescribedConfig;

    pub fn model(inputs: &[(&str, Datatype, &[i64])], rows_max: Option<i64>) -> ModelDescription {
        let input = |(name, datatype, shape): &(&str, Datatype, &[i64])| InputDescription {
            name: (*name).to_owned(),
            datatype: *datatype,
            shape: shape.to_vec(),
        };
        let config = rows_max.map(|rows_max| DescribedConfig { rows_max, ..DescribedConfig::default() });
        ModelDescription { inputs: inputs.iter().map(input).collect(), config }
    }

    fn plan(rows: usize, shapes: &[(&str, &[i64])]) -> InputPlan {
        let shapes = shapes.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect();
        InputPlan { rows, shapes, string: None, string_length: 5, seed: 1 }
    }

    #[test]
    fn shapes_come_from_the_model_or_the_flag_and_are_checked() {
        let check = |model: &ModelDescription, plan: &InputPlan, want: Result<Vec<Vec<i64>>, &str>| {
            let got = InputLayout::new(model, plan);
            let got = got.map(|layout| layout.inputs.into_iter().map(|(_, shape)| shape).collect());
            assert_eq!(got, want.map_err(str::to_owned), "{plan:?}");
        };
        let fixed = model(&[("A", Datatype::Fp32, &[-1, 4])], Some(8));
        check(&fixed, &plan(1, &[]), Ok(vec![vec![4]]));
        check(&fixed, &plan(9, &[]), Err("-b 9: the model takes at most 8 rows"));
        check(&fixed, &plan(1, &[("B", &[4])]), Err("--shape names 'B', which the model has not; its inputs: A"));
        let misfit = "--shape A: [5] does not fit the model's [4] (the batch axis is left out)";
        check(&fixed, &plan(1, &[("A", &[5])]), Err(misfit));
        let plain = model(&[("A", Datatype::Fp32, &[-1, 4])], Some(0));
        check(&plain, &plan(1, &[("A", &[3, 4])]), Ok(vec![vec![3, 4]]));
        check(&plain, &plan(2, &[]), Err("-b 2: the model takes no batches"));
        let unknown = model(&[("A", Datatype::Fp32, &[-1, 4])], None);
        check(&unknown, &plan(2, &[]), Ok(vec![vec![4]]));
        check(&unknown, &plan(1, &[("A", &[3, 4])]), Ok(vec![vec![3, 4]]));
    }

    #[test]
    fn a_variable_shape_needs_the_flag() {
        let model = model(&[("A", Datatype::Fp32, &[-1, -1])], Some(8));
        let open = plan(1, &[]);
        let error = InputLayout::new(&model, &open).unwrap().fill(InputFill::Zero, &open).unwrap_err();
        assert_eq!(error, "input 'A' has the variable shape [-1]: give it one with --shape A:…");
        let given = plan(2, &[("A", &[3])]);
        let inputs = InputLayout::new(&model, &given).unwrap().fill(InputFill::Zero, &given).unwrap();
        let batch = inputs.batch(0, 0, 2).unwrap();
        assert_eq!((&batch[0].1.shape[..], &batch[0].1.contents[..]), (&[2, 3][..], &[0; 24][..]));
    }

    #[test]
    fn optional_inputs_are_generated_if_they_have_a_shape() {
        let mut model = model(&[("A", Datatype::Fp32, &[-1, 2]), ("B", Datatype::Int64, &[-1, -1])], Some(8));
        model.config.as_mut().unwrap().optional.push("B".to_owned());
        let inputs = |shapes: &[(&str, &[i64])]| {
            let plan = plan(1, shapes);
            let inputs = InputLayout::new(&model, &plan).unwrap().fill(InputFill::Zero, &plan).unwrap();
            inputs.batch(0, 0, 1).unwrap().into_iter().map(|(input, _)| input).collect::<Vec<_>>()
        };
        assert_eq!(inputs(&[]), [0]);
        assert_eq!(inputs(&[("B", &[3])]), [0, 1]);
    }

    #[test]
    fn random_contents_fit_their_datatype_and_come_again_with_the_seed() {
        for datatype in Datatype::ALL {
            let model = model(&[("A", datatype, &[100])], Some(0));
            let plan = plan(1, &[]);
            let layout = InputLayout::new(&model, &plan).unwrap();
            let inputs = layout.fill(InputFill::Random, &plan).unwrap();
            assert_eq!(inputs, layout.fill(InputFill::Random, &plan).unwrap());
            let tensor = inputs.streams[0][0][0].clone().unwrap();
            layout.checked(&model.inputs[0], &[100], tensor.contents.clone()).unwrap();
            let distinct: std::collections::BTreeSet<_> = tensor.contents.iter().collect();
            assert!(distinct.len() > 1, "{datatype:?}");
        }
    }

    #[test]
    fn strings_are_as_asked() {
        let model = model(&[("A", Datatype::Bytes, &[2])], Some(0));
        let contents = |fill, string: Option<&str>| {
            let plan = InputPlan { string: string.map(str::to_owned), ..plan(1, &[]) };
            let inputs = InputLayout::new(&model, &plan).unwrap().fill(fill, &plan).unwrap();
            inputs.streams[0][0][0].clone().unwrap().contents.to_vec()
        };
        assert_eq!(contents(InputFill::Random, Some("hi")), b"\x02\0\0\0hi\x02\0\0\0hi");
        assert_eq!(contents(InputFill::Zero, None), [0; 8]);
        let random = contents(InputFill::Random, None);
        let read: Vec<_> = strings::Strings::new(&random).map(Result::unwrap).collect();
        assert!(read.len() == 2 && read.iter().all(|text| text.len() == 5 && text.is_ascii()) && read[0] != read[1]);
    }

    #[test]
    fn files_hold_the_bytes_of_a_row_or_a_string_on_each_line() {
        let model = model(&[("A", Datatype::Int16, &[-1, 2]), ("S", Datatype::Bytes, &[-1, 2])], Some(4));
        let plan = plan(1, &[]);
        let layout = InputLayout::new(&model, &plan).unwrap();
        let read = |name: &str| match name {
            "A" => Ok(vec![1, 0, 2, 0]),
            _ => Ok(b"one\ntwo\n".to_vec()),
        };
        let batch = layout.from_files(read).unwrap().batch(0, 0, 2).unwrap();
        assert_eq!(batch[0].1.contents, &[1, 0, 2, 0, 1, 0, 2, 0][..]);
        assert_eq!(batch[1].1.contents, &b"\x03\0\0\0one\x03\0\0\0two\x03\0\0\0one\x03\0\0\0two"[..]);
        let short = layout.from_files(|_| Ok(vec![1])).unwrap_err();
        assert_eq!(short, "input 'A' of shape [2] needs 4 bytes, got 1");
        assert_eq!(layout.from_files(|name| Err(format!("no {name}"))).unwrap_err(), "no A");
    }

    #[test]
    fn a_file_is_the_only_string_or_the_bytes_of_a_row() {
        let plan = plan(1, &[]);
        let read = |inputs: &[(&str, Datatype, &[i64])], bytes: &[u8]| {
            let model = model(inputs, Some(4));
            let inputs = InputLayout::new(&model, &plan)?.from_binary(bytes.to_vec())?;
            let batch = inputs.batch(0, 0, 1)?;
            Ok::<_, String>((batch[0].1.shape.to_vec(), batch[0].1.contents.to_vec()))
        };
        let jpeg = b"\xff\xd8\xff\xe0";
        let want = Ok((vec![1, 1], b"\x04\0\0\0\xff\xd8\xff\xe0".to_vec()));
        assert_eq!(read(&[("IMAGE", Datatype::Bytes, &[-1, 1])], jpeg), want);
        assert_eq!(read(&[("IMAGE", Datatype::Bytes, &[-1, -1])], jpeg), want);
        assert_eq!(read(&[("A", Datatype::Int16, &[-1, 2])], jpeg), Ok((vec![1, 2], jpeg.to_vec())));
        let short = read(&[("A", Datatype::Int32, &[-1, 2])], jpeg).unwrap_err();
        assert_eq!(short, "input 'A' of shape [2] needs 8 bytes, got 4");
        let two = read(&[("A", Datatype::Int32, &[-1, 1]), ("B", Datatype::Int32, &[-1, 1])], jpeg).unwrap_err();
        assert!(two.contains("a folder with a file for each input"), "{two}");
    }

    #[test]
    fn the_rows_of_a_batch_follow_each_other_in_the_stream() {
        let model = model(&[("A", Datatype::Uint8, &[-1, 1])], Some(4));
        let plan = plan(1, &[]);
        let layout = InputLayout::new(&model, &plan).unwrap();
        let sample = |byte: u8| vec![Some(layout.checked(&model.inputs[0], &[1], vec![byte]).unwrap())];
        let inputs = Inputs { streams: vec![vec![sample(1), sample(2), sample(3)]], is_batching: true };
        let contents = |index, rows| inputs.batch(0, index, rows).unwrap()[0].1.contents.to_vec();
        assert_eq!(contents(0, 2), [1, 2]);
        assert_eq!(contents(2, 4), [3, 1, 2, 3]);
        let mut odd = inputs.clone();
        odd.streams[0][1] = vec![None];
        assert!(odd.batch(0, 0, 2).is_err());
    }
}

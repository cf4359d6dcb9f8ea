//! `model_warmup`: every new instance of a model runs the samples of its configuration before it serves. A sample that
//! fails, fails the load. Warm-up runs are in no statistics. Bounded by `WARM_UP_RUNS_MAX` and `WARM_UP_SIZE_MAX`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use crossbeam_utils::atomic::AtomicCell;

use crate::backend::{Batch, Computation, Instance, LoadedModel, Request, Threads, run_to_end};
use crate::control::engines::internal_sink::InternalSink;
use crate::control::loading::vetted_model::{InstanceCheck, VettedModel};
use crate::error::Error;
use crate::limits::WARM_UP_SIZE_MAX;
use crate::log;
use crate::model::config::warm_up;
use crate::model::spec::{WarmUp, WarmUpInput, WarmUpSource};
use crate::model::{InstanceGroup, ModelSpec, TensorSpec};
use crate::runtime::clock;
use crate::tensor::strings::Strings;
use crate::tensor::{AlignedBuffer, Datatype, Shape, Tensor, element_count};

/// One sample, ready to run.
struct WarmUpSample {
    name: String,
    /// Requests in the batch, one row each.
    requests: u32,
    /// The number of runs of the batch.
    runs: u32,
    /// The inputs of each request.
    inputs: Vec<Tensor>,
}

/// The runs of each new instance of a model.
struct WarmUpRuns {
    /// The model's name.
    name: String,
    samples: Vec<WarmUpSample>,
}

/// Wraps a model so that each new instance runs the samples of its configuration. `read` reads a sample's file, by its
/// path beneath the model's directory, up to a number of bytes. `start_inputs` are the defaults of the last inputs when
/// a sample does not have them: for a model that serves sequences, the control inputs and states at a sequence's start.
///
/// # Errors
/// When the file of a sample cannot be read or does not have the bytes of its tensor.
pub fn with_warm_up(
    model: Box<dyn LoadedModel>,
    spec: &ModelSpec,
    start_inputs: &[Tensor],
    read: impl Fn(&str, usize) -> Result<Vec<u8>, Error>,
) -> Result<Box<dyn LoadedModel>, Error> {
    if spec.warm_ups.is_empty() {
        return Ok(model);
    }
    let samples =
        spec.warm_ups.iter().map(|sample| prepare(spec, sample, start_inputs, &read)).collect::<Result<_, _>>()?;
    Ok(Box::new(VettedModel { model, check: WarmUpRuns { name: spec.name.clone(), samples } }))
}

impl InstanceCheck for WarmUpRuns {
    fn check(&self, instance: &mut dyn Instance, threads: &Threads) -> Result<(), Error> {
        if instance.is_warm() {
            return Ok(());
        }
        let name = threads.instance().map_or(&self.name, |instance| &instance.name);
        for sample in &self.samples {
            for _ in 0..sample.runs {
                // tritonserver's words, which its users look for.
                log::verbose(&format!(
                    "model '{}' instance {name} is running warmup sample '{}'",
                    self.name, sample.name
                ));
                run(instance, sample)
                    .map_err(|error| error.with_prefix(&format!("failed to run warmup sample '{}': ", sample.name)))?;
            }
        }
        instance.set_warm();
        Ok(())
    }
}

/// Makes an instance of a model with a warm-up, so that a failing warm-up fails the load before any worker starts. The
/// instance is for the trials of the load: [`TriedModel`] hands it out.
///
/// # Errors
/// The error of the instance, or of its warm-up.
pub fn try_warm_up<'a>(
    spec: &ModelSpec,
    model: &'a dyn LoadedModel,
    threads: &Threads,
) -> Result<TriedModel<'a>, Error> {
    let first = spec.instance_groups.iter().flat_map(InstanceGroup::instances).next();
    let make = || model.new_instance(&threads.on(first.and_then(|(_, gpu)| gpu)));
    let tried = (!spec.warm_ups.is_empty()).then(make).transpose()?;
    Ok(TriedModel { model, tried: AtomicCell::new(tried) })
}

/// A model with an instance that was warmed up already, which is the first that it makes.
pub struct TriedModel<'a> {
    model: &'a dyn LoadedModel,
    tried: AtomicCell<Option<Box<dyn Instance>>>,
}

impl LoadedModel for TriedModel<'_> {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let tried = self.tried.take();
        tried.map_or_else(|| self.model.new_instance(threads), Ok)
    }

    fn may_run_inline(&self) -> bool {
        self.model.may_run_inline()
    }

    fn why_not_inline(&self) -> &str {
        self.model.why_not_inline()
    }

    fn computation(&self) -> Computation {
        self.model.computation()
    }
}

fn run(instance: &mut dyn Instance, sample: &WarmUpSample) -> Result<(), Error> {
    let sink = Arc::new(InternalSink::default());
    let requests = (0..sample.requests).map(|index| {
        let responder = sink.responder(index, sample.requests);
        Request { inputs: sample.inputs.clone(), rows: 1, responder, sequence: None, details: None }
    });
    let batch = Batch { requests: requests.collect(), rows: sample.requests, clock: clock::now, ended: Vec::new() };
    catch_unwind(AssertUnwindSafe(|| run_to_end(instance, batch)))
        .map_err(|_| Error::internal("the engine panicked"))?;
    while let Some(answer) = sink.pop() {
        answer.outputs?;
    }
    Ok(())
}

/// Makes the tensors of a sample. An optional input that the sample leaves out gets an empty tensor.
fn prepare(
    spec: &ModelSpec,
    sample: &WarmUp,
    start_inputs: &[Tensor],
    read: &impl Fn(&str, usize) -> Result<Vec<u8>, Error>,
) -> Result<WarmUpSample, Error> {
    let mut inputs = Vec::with_capacity(spec.inputs.len());
    let client_inputs = spec.inputs.len().saturating_sub(start_inputs.len());
    let defaults = (0..client_inputs).map(|_| None).chain(start_inputs.iter().map(Some));
    for ((input, given), default) in spec.inputs.iter().zip(&sample.inputs).zip(defaults) {
        inputs.push(match given {
            Some(given) => tensor(input, given, read)?,
            None if let Some(default) = default => default.clone(),
            None => Tensor { datatype: input.datatype, shape: Shape::new(), contents: Bytes::new() },
        });
    }
    Ok(WarmUpSample { name: sample.name.clone(), requests: sample.requests, runs: sample.runs, inputs })
}

fn tensor(
    input: &TensorSpec,
    given: &WarmUpInput,
    read: &impl Fn(&str, usize) -> Result<Vec<u8>, Error>,
) -> Result<Tensor, Error> {
    let datatype = input.datatype;
    let size = warm_up::size(datatype, &given.shape).unwrap_or_default();
    let contents = match &given.source {
        WarmUpSource::Zero => AlignedBuffer::zeroed(size),
        WarmUpSource::Random => random(datatype, size),
        WarmUpSource::File(file) => {
            let bytes = read(&format!("{}/{file}", warm_up::DIRECTORY), WARM_UP_SIZE_MAX)?;
            let bytes = file_contents(datatype, &given.shape, file, &bytes, size)?;
            let mut buffer = AlignedBuffer::with_capacity(bytes.len());
            buffer.extend_from_slice(bytes);
            buffer
        }
    };
    let shape = if input.is_shape_tensor { None } else { input.to_model(&given.shape) };
    Ok(Tensor { datatype, shape: shape.unwrap_or_else(|| given.shape.clone()), contents: contents.freeze() })
}

/// Returns the part of a file that makes the tensor. As in Triton, the file may be longer; not so
/// for strings, whose number must be that of the shape.
fn file_contents<'a>(
    datatype: Datatype,
    shape: &[i64],
    file: &str,
    bytes: &'a [u8],
    size: usize,
) -> Result<&'a [u8], Error> {
    if datatype != Datatype::Bytes {
        return bytes.get(..size).ok_or_else(|| {
            Error::invalid(format!(
                "warmup setting expects {size} bytes, but the data provided from {file} only has {} bytes",
                bytes.len()
            ))
        });
    }
    let count = Strings::new(bytes).try_fold(0_usize, |count, text| text.ok().map(|_| count + 1));
    if element_count(shape).ok() == count {
        return Ok(bytes);
    }
    Err(Error::invalid(format!(
        "warmup setting expects the strings of shape {shape:?}, each behind its length in 4 bytes, but the data provided \
         from {file} is not that"
    )))
}

/// Returns random contents, the same at each start (xorshift64): floats from 0 to 1, and integers
/// below 128, since integer inputs are often indices.
fn random(datatype: Datatype, size: usize) -> AlignedBuffer {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut buffer = AlignedBuffer::with_capacity(size);
    while buffer.len() < size {
        let bits = next();
        // 24 bits: exact in an f32.
        #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
        let unit = (bits >> 40) as f32 / 16_777_216.0;
        let small = bits >> 57;
        match datatype {
            Datatype::Fp16 => buffer.extend_from_slice(&half::f16::from_f32(unit).to_le_bytes()),
            Datatype::Bf16 => buffer.extend_from_slice(&half::bf16::from_f32(unit).to_le_bytes()),
            Datatype::Fp32 => buffer.extend_from_slice(&unit.to_le_bytes()),
            Datatype::Fp64 => buffer.extend_from_slice(&f64::from(unit).to_le_bytes()),
            Datatype::Bool => buffer.extend_from_slice(&[u8::from(small % 2 == 1)]),
            _ => {
                let bytes = small.to_le_bytes();
                buffer.extend_from_slice(bytes.get(..datatype.size().unwrap_or(1)).unwrap_or_default());
            }
        }
    }
    buffer
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crossbeam_queue::SegQueue;

    use super::*;
    use crate::backend::{Backend, Identity, ReadyReply, StatefulModel, threads};
    use crate::model::config::{CompletionRules, ConfigDraft};

    fn spec(warm_up: &str) -> Result<ModelSpec, Error> {
        let text = format!(
            "backend: 'identity' max_batch_size: 8\n\
             input [ {{ name: 'x' data_type: TYPE_FP32 dims: [ -1, 2 ] reshape {{ shape: [ -1, 1, 2 ] }} }}, \
                     {{ name: 's' data_type: TYPE_STRING dims: 2 optional: true }} ]\n\
             output [ {{ name: 'y' data_type: TYPE_FP32 dims: [ -1, 2 ] reshape {{ shape: [ -1, 1, 2 ] }} }}, \
                      {{ name: 't' data_type: TYPE_STRING dims: 2 }} ]\n\
             model_warmup [ {warm_up} ]"
        );
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[])?;
        draft.complete(None, &BTreeMap::new(), CompletionRules::default())
    }

    fn make(warm_up: &str) -> Result<(), Error> {
        let spec = spec(warm_up)?;
        let files = |path: &str, size_max: usize| match path {
            "warmup/six" => Ok([1_f32; 6].map(f32::to_le_bytes).concat()),
            "warmup/words" => Ok(b"\x01\0\0\0a\0\0\0\0".to_vec()),
            _ => Err(Error::not_found(format!("{path} of at most {size_max}"))),
        };
        let model = Identity::default().load(&Arc::new(spec.clone()), Path::new(""))?;
        let model = with_warm_up(model, &spec, &[], files)?;
        threads::enter(1, |threads| model.new_instance(threads).map(drop))
    }

    #[test]
    fn samples_of_every_kind_run_or_say_what_is_wrong() {
        let x = |data: &str| format!("{{ key: 'x' value {{ data_type: TYPE_FP32 dims: [ 3, 2 ] {data} }} }}");
        let s = |data: &str| format!("{{ key: 's' value {{ data_type: TYPE_STRING dims: 2 {data} }} }}");
        let sample = |fields: &str, inputs: &str| format!("{{ name: 'w' batch_size: 1 {fields} inputs [ {inputs} ] }}");
        let check = |warm_up: &str, want: &str| {
            let got = make(warm_up).err().map(|error| error.text().to_owned()).unwrap_or_default();
            assert_eq!(got, want, "{warm_up}");
        };
        for data in ["zero_data: true", "random_data: true", "input_data_file: 'six'"] {
            check(&sample("count: 3", &x(data)), "");
        }
        for data in ["zero_data: true", "random_data: true", "input_data_file: 'words'"] {
            check(&sample("", &format!("{}, {}", x("zero_data: true"), s(data))), "");
        }
        check("{ name: 'skipped' }", "");
        let failed = |text: &str| format!("failed to run warmup sample 'w': {text}");
        check(&sample("", ""), &failed("it lacks input 'x', which the model requires"));
        check("{ name: 'w' batch_size: 9 }", &failed("batch size 9 for 'm', max allowed is 8"));
        check(&sample("count: 10001", ""), &failed("its count is 10001, more than the 10000 allowed"));
        let other = "{ key: 'z' value { data_type: TYPE_FP32 dims: 1 zero_data: true } }";
        check(&sample("", other), &failed("unexpected inference input 'z' for model 'm'"));
        check(&sample("", &x("")), "warmup setting expects input 'x' to have input_data_type set");
        let input = |data: &str| sample("", &format!("{{ key: 'x' value {{ {data} zero_data: true }} }}"));
        let open = "warmup setting expects all variable-size dimensions are specified for input 'x'";
        check(&input("data_type: TYPE_FP32 dims: [ -1, 2 ]"), open);
        check(
            &input("data_type: TYPE_FP32 dims: [ 3, 3 ]"),
            "warmup setting gives input 'x' dims [3, 3], which do not fit the dims [-1, 2] of its configuration",
        );
        check(
            &input("data_type: TYPE_FP32 dims: [ 99999999999, 2 ]"),
            "warmup setting gives input 'x' more than the 67108864 bytes allowed",
        );
        check(
            &input("data_type: TYPE_INT8 dims: [ 3, 2 ]"),
            "warmup setting gives input 'x' of model 'm' as TYPE_INT8, expected TYPE_FP32",
        );
        let file = |name: &str, rows: i64| {
            let value = format!("data_type: TYPE_FP32 dims: [ {rows}, 2 ] input_data_file: '{name}'");
            sample("", &format!("{{ key: 'x' value {{ {value} }} }}"))
        };
        check(&file("six", 2), "");
        check(&file("six", 4), "warmup setting expects 32 bytes, but the data provided from six only has 24 bytes");
        check(&file("none", 3), "warmup/none of at most 67108864");
        check(
            &file("../six", 3),
            "model 'm': 'input_data_file' is '../six'; name a file beneath the model's directory, by a relative path \
             without '..'",
        );
        check(
            &sample("", &format!("{}, {}", x("zero_data: true"), s("input_data_file: 'six'"))),
            "warmup setting expects the strings of shape [1, 2], each behind its length in 4 bytes, but the data provided \
             from six is not that",
        );
    }

    /// Counts its runs, and fails the one with the number `fails_at`.
    struct Counting {
        runs: Arc<AtomicU32>,
        fails_at: Option<u32>,
        is_warm: bool,
    }

    impl LoadedModel for Counting {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(Counting { runs: Arc::clone(&self.runs), fails_at: self.fails_at, is_warm: false }))
        }

        fn may_run_inline(&self) -> bool {
            true
        }
    }

    impl Instance for Counting {
        fn run(&mut self, batch: Batch) {
            let index = self.runs.fetch_add(1, Ordering::Relaxed);
            assert_eq!((batch.requests.len(), batch.rows), (2, 2));
            for request in batch.requests {
                assert_eq!(request.inputs[0].shape.as_slice(), [1, 1, 1, 2]);
                let outcome = if self.fails_at == Some(index) { Err(Error::internal("no")) } else { Ok(Vec::new()) };
                request.responder.send(outcome);
            }
        }
    }

    #[test]
    fn every_instance_runs_every_sample_and_a_failing_one_makes_none() {
        let input = "{ key: 'x' value { data_type: TYPE_FP32 dims: [ 1, 2 ] random_data: true } }";
        let sample = |name: &str| format!("{{ name: '{name}' batch_size: 2 count: 2 inputs [ {input} ] }}");
        let spec = spec(&format!("{}, {}", sample("a"), sample("b"))).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let load = |fails_at| {
            let model = Box::new(Counting { runs: Arc::clone(&runs), fails_at, is_warm: false });
            with_warm_up(model, &spec, &[], |_, _| Ok(Vec::new())).unwrap()
        };
        let make = |model: &dyn LoadedModel| threads::enter(1, |threads| model.new_instance(threads).err());
        let model = load(None);
        assert_eq!((make(&*model), make(&*model), runs.load(Ordering::Relaxed)), (None, None, 8));
        let error = make(&*load(Some(10))).unwrap();
        assert_eq!((error.text(), runs.load(Ordering::Relaxed)), ("failed to run warmup sample 'b': no", 11));
    }

    /// Lends its instances for a trial, and has them back when that is over.
    struct Lending(Arc<SegQueue<Counting>>);

    /// An instance that goes back.
    struct Lent(Option<Counting>, Arc<SegQueue<Counting>>);

    impl LoadedModel for Lending {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(Lent(self.0.pop(), Arc::clone(&self.0))))
        }

        fn may_run_inline(&self) -> bool {
            false
        }
    }

    impl Instance for Lent {
        fn run(&mut self, batch: Batch) {
            self.0.as_mut().unwrap().run(batch);
        }

        fn is_warm(&self) -> bool {
            self.0.as_ref().unwrap().is_warm
        }

        fn set_warm(&mut self) {
            self.0.as_mut().unwrap().is_warm = true;
        }
    }

    impl Drop for Lent {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|instance| self.1.push(instance));
        }
    }

    #[test]
    fn an_instance_is_warmed_up_once_though_a_trial_had_it_before() {
        let input = "{ key: 'x' value { data_type: TYPE_FP32 dims: [ 1, 2 ] random_data: true } }";
        let spec = spec(&format!("{{ name: 'a' batch_size: 2 count: 3 inputs [ {input} ] }}")).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let pool = Arc::new(SegQueue::new());
        for _ in 0..2 {
            pool.push(Counting { runs: Arc::clone(&runs), fails_at: None, is_warm: false });
        }
        let model = with_warm_up(Box::new(Lending(pool)), &spec, &[], |_, _| Ok(Vec::new())).unwrap();
        let ran = || runs.load(Ordering::Relaxed);
        threads::enter(1, |threads| {
            let tried = try_warm_up(&spec, &*model, threads).unwrap();
            assert_eq!(ran(), 3);
            // The measurement.
            drop(tried.new_instance(threads).unwrap());
            drop(tried);
            assert_eq!(ran(), 3);
            let _workers = [model.new_instance(threads).unwrap(), model.new_instance(threads).unwrap()];
            assert_eq!(ran(), 6);
        });
    }

    /// Stores the inputs of every run.
    struct Keeping(Arc<SegQueue<Vec<Tensor>>>);

    impl LoadedModel for Keeping {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(Keeping(Arc::clone(&self.0))))
        }

        fn may_run_inline(&self) -> bool {
            true
        }

        fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
            reply(false);
            None
        }

        fn handle_unload(&self) {
            self.0.push(Vec::new());
        }

        fn refuses_while_lost(&self) -> bool {
            true
        }
    }

    impl Instance for Keeping {
        fn run(&mut self, batch: Batch) {
            for request in batch.requests {
                self.0.push(request.inputs);
                request.responder.send(Ok(Vec::new()));
            }
        }
    }

    #[test]
    fn a_warm_up_of_a_sequence_model_has_the_inputs_of_a_sequence_start_unless_its_sample_has_them() {
        let warm = |more: &str| {
            let text = format!(
                "backend: 'sequence' max_batch_size: 4 input {{ name: 'x' data_type: TYPE_INT32 dims: 1 }} \
                 output {{ name: 'y' data_type: TYPE_INT32 dims: 1 }} sequence_batching {{ \
                 control_input {{ name: 'S' control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 7 ] }} }} \
                 control_input {{ name: 'I' control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} }} \
                 state {{ input_name: 's' output_name: 't' data_type: TYPE_FP32 dims: -1 }} }} \
                 model_warmup {{ name: 'w' batch_size: 1 inputs {{ key: 'x' value {{ data_type: TYPE_INT32 dims: 1 \
                 zero_data: true }} }} {more} }}"
            );
            let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
            let spec = draft.complete(None, &BTreeMap::new(), CompletionRules::default())?;
            let sequence = spec.sequence.clone().unwrap();
            let start_inputs = backend::stateful::begun_inputs(&sequence, true);
            let sink = Arc::new(SegQueue::new());
            let model = Box::new(Keeping(Arc::clone(&sink)));
            let model = with_warm_up(model, &sequence.engine, &start_inputs, |_, _| Ok(Vec::new()))?;
            threads::enter(1, |threads| model.new_instance(threads).map(drop))?;
            let inputs = sink.pop().unwrap();
            assert_eq!((inputs.len(), inputs[2].contents.len()), (4, 8));
            Ok::<_, Error>((inputs[1].contents[0], inputs[1].shape.to_vec(), inputs[3].shape.to_vec()))
        };
        assert_eq!(warm(""), Ok((7, vec![1, 1], vec![1, 1])));
        let input = |name: &str, kind: &str, dims: &str| {
            format!("inputs {{ key: '{name}' value {{ data_type: {kind} dims: {dims} zero_data: true }} }}")
        };
        assert_eq!(warm(&input("S", "TYPE_INT32", "1")), Ok((0, vec![1, 1], vec![1, 1])));
        assert_eq!(warm(&input("S", "TYPE_INT32", "[ 1, 1 ]")), Ok((0, vec![1, 1], vec![1, 1])), "as Triton has it");
        assert_eq!(warm(&input("s", "TYPE_FP32", "5")), Ok((7, vec![1, 1], vec![1, 5])));
        let refused = warm(&input("z", "TYPE_FP32", "1")).unwrap_err();
        assert!(refused.text().ends_with("unexpected inference input 'z' for model 'm'"), "{refused}");
    }

    #[test]
    fn a_model_within_others_is_asked_whether_it_is_ready_and_told_of_its_end() {
        let text = "backend: 'sequence' max_batch_size: 4 input { name: 'x' data_type: TYPE_INT32 dims: 1 } \
                    output { name: 'y' data_type: TYPE_INT32 dims: 1 } sequence_batching { } \
                    model_warmup { name: 'w' batch_size: 1 inputs { key: 'x' value { data_type: TYPE_INT32 dims: 1 \
                    zero_data: true } } }";
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        let spec = draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap();
        let sequence = spec.sequence.clone().unwrap();
        let told = Arc::new(SegQueue::new());
        let warmed = with_warm_up(Box::new(Keeping(Arc::clone(&told))), &sequence.engine, &[], |_, _| Ok(Vec::new()));
        let model = StatefulModel::new(warmed.unwrap(), &spec, sequence, 0);
        let (sender, asked) = std::sync::mpsc::channel();
        assert!(model.ask_ready(Box::new(move |is_ready| sender.send(is_ready).unwrap())).is_none());
        assert_eq!(asked.recv(), Ok(false));
        assert!(model.refuses_while_lost());
        model.handle_unload();
        assert_eq!(told.len(), 1);
    }

    #[test]
    fn random_contents_are_in_range() {
        let floats = random(Datatype::Fp32, 400);
        let floats = floats.as_slice().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
        let floats: Vec<_> = floats.collect();
        assert!(floats.iter().all(|float| (0.0..1.0).contains(float)) && floats[0] != floats[1], "{floats:?}");
        assert!(random(Datatype::Bool, 100).as_slice().iter().all(|byte| *byte < 2));
        for datatype in Datatype::ALL {
            let size = datatype.size().unwrap_or(1) * 3;
            assert_eq!(random(datatype, size).len(), size, "{datatype:?}");
        }
    }
}

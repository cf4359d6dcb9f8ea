//! The built-in `identity`: the outputs are the inputs, in the same memory. Triton's test backend, with its parameters
//! `execute_delay_ms`, `instance_wise_delay_multiplier` and `creation_delay_sec`. It serves all datatypes, and a
//! benchmark of it measures the server alone. As Triton's own ([`Identity::as_tritons`]) it also counts the bytes of its
//! inputs in a metric and puts parameters into each response, which only its tests look at. The output of an optional input that was left out is zeros, as in Triton;
//! their size is bounded by `LEFT_OUT_SIZE_MAX`.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::custom_metrics::{CustomMetrics, MetricKind, MetricOperation, MetricSeries, ProcessMetrics};
use crate::limits::LEFT_OUT_SIZE_MAX;
use crate::text::{ShapeText, config_name};
use crate::{Backend, Batch, Instance, LoadedModel, Request, Threads};
use base::error::Error;
use base::tensor::{AlignedBuffer, Shape, Tensor, byte_size, element_count};
use base::time::Clock;
use model::parameters::{ParameterValue, Parameters};
use model::{ModelSpec, TensorSpec};

/// The backend.
#[derive(Clone, Default)]
pub struct Identity {
    /// The metrics for Triton's counter; `None` if it only answers.
    metrics: Option<Arc<CustomMetrics>>,
}

impl Identity {
    /// An identity backend with the metric and the response parameters of Triton's.
    pub fn as_tritons(metrics: &Arc<CustomMetrics>) -> Self {
        Self { metrics: Some(Arc::clone(metrics)) }
    }
}

/// A loaded model, and each of its instances: the input of each output, and the duration of an
/// execution.
#[derive(Clone)]
struct IdentityModel {
    spec: Arc<ModelSpec>,
    sources: Arc<[usize]>,
    delay: Duration,
    /// Counts the bytes of its inputs, if it behaves as Triton's.
    counter: Option<Arc<InputCounter>>,
}

/// The metric of one model version. It is shown while the model is loaded.
struct InputCounter {
    series: Arc<MetricSeries>,
    _metrics: ProcessMetrics,
}

impl InputCounter {
    fn new(metrics: &Arc<CustomMetrics>, spec: &ModelSpec, directory: &Path) -> Result<Self, Error> {
        let metrics = metrics.for_process();
        let description = "Cumulative input byte size of all requests received by the model";
        let family = metrics.new_family(MetricKind::Counter, "input_byte_size_counter", description)?;
        let version = directory.file_name().and_then(|name| name.to_str()).unwrap_or("1");
        let labels = [("model", spec.name.as_str()), ("version", version)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let series = metrics.new_metric(family, labels, &[]).map(|metric| metrics.series(metric))?;
        let series = series.ok_or_else(|| Error::internal("a metric is gone as soon as it was made"))?;
        Ok(Self { series, _metrics: metrics })
    }

    /// Counts a request and puts Triton's parameters into its response.
    fn note(&self, request: &mut Request) {
        let size: usize = request.inputs.iter().map(|input| input.contents.len()).sum();
        #[expect(clippy::cast_precision_loss, reason = "metrics are doubles")]
        // A counter takes any sum that is not negative.
        let _ = self.series.update(MetricOperation::Increment, size as f64);
        let parameters = [
            ("param0", ParameterValue::Text("an example string parameter".to_owned())),
            ("param1", ParameterValue::Int64(42)),
            ("param2", ParameterValue::Bool(false)),
            ("param3", ParameterValue::Double(123.123)),
        ];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value));
        request.responder.set_parameters(Parameters(parameters.into_iter().collect()));
    }
}

impl Backend for Identity {
    fn name(&self) -> &str {
        "identity"
    }

    #[expect(clippy::disallowed_methods, reason = "a load that takes as long as its configuration says")]
    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        if spec.inputs.len() != spec.outputs.len() {
            return Err(Error::invalid("model configuration must have equal input/output pairs"));
        }
        // Triton's tests of slow loads use this.
        thread::sleep(Duration::from_secs(number(spec, "creation_delay_sec")?.into()));
        let sources = spec.outputs.iter().enumerate().map(|(index, output)| source(spec, index, output));
        Ok(Box::new(IdentityModel {
            spec: Arc::clone(spec),
            sources: sources.collect::<Result<_, _>>()?,
            delay: delay(spec)?,
            counter: match &self.metrics {
                Some(metrics) => Some(Arc::new(InputCounter::new(metrics, spec, directory)?)),
                None => None,
            },
        }))
    }
}

impl LoadedModel for IdentityModel {
    fn new_instance(&self, _threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(self.clone()))
    }

    fn may_run_inline(&self) -> bool {
        self.delay.is_zero()
    }
}

impl Instance for IdentityModel {
    fn run(&mut self, batch: Batch) {
        let Batch { mut requests, clock, .. } = batch;
        let input_end = clock();
        let infer_end = if self.delay.is_zero() { input_end } else { wait(clock, self.delay) };
        for request in &mut requests {
            let stamps = &mut request.responder.stamps;
            (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, infer_end, infer_end);
        }
        for mut request in requests {
            if let Some(counter) = &self.counter {
                counter.note(&mut request);
            }
            let (want, came) = (self.spec.inputs.len(), request.inputs.len());
            if want == came {
                request.responder.send(self.outputs(request.inputs, request.rows));
            } else {
                let error = Error::internal(format!("model '{}' takes {want} inputs but {came} came", self.spec.name));
                request.responder.send(Err(error));
            }
        }
    }
}

impl IdentityModel {
    fn outputs(&self, mut inputs: Vec<Tensor>, rows: u32) -> Result<Vec<Tensor>, Error> {
        for (input, tensor) in self.spec.inputs.iter().zip(&mut inputs).filter(|(_, tensor)| !tensor.is_given()) {
            *tensor = self.zeros(input, rows)?;
        }
        if self.sources.iter().copied().eq(0..inputs.len()) {
            return Ok(inputs);
        }
        Ok(self.sources.iter().filter_map(|source| inputs.get(*source).cloned()).collect())
    }

    /// The output of an input that was left out: zeros, with a size of 1 for a variable dimension.
    fn zeros(&self, input: &TensorSpec, rows: u32) -> Result<Tensor, Error> {
        let mut shape: Shape = input.model_shape.iter().map(|size| (*size).max(1)).collect();
        if let Some(first) = shape.first_mut().filter(|_| self.spec.has_batch_axis()) {
            *first = i64::from(rows);
        }
        // BYTES: an empty string is its length, four zero bytes.
        let size = byte_size(input.datatype, &shape).and_then(|size| match size {
            Some(size) => Ok(Some(size)),
            None => element_count(&shape).map(|count| count.checked_mul(4)),
        });
        let size = size.ok().flatten().filter(|size| *size <= LEFT_OUT_SIZE_MAX);
        let contents = size.map(|size| AlignedBuffer::zeroed(size).freeze()).ok_or_else(|| {
            let (name, model) = (&input.name, &self.spec.name);
            Error::invalid(format!(
                "input '{name}' of model '{model}' was left out, and its zeros are more than {LEFT_OUT_SIZE_MAX} bytes"
            ))
        })?;
        Ok(Tensor { datatype: input.datatype, shape, contents })
    }
}

/// The index of an output's input: the one of the same number (`INPUT3`, `OUTPUT3`), as in Triton, or
/// else the one at the same index.
fn source(spec: &ModelSpec, index: usize, output: &TensorSpec) -> Result<usize, Error> {
    let number = output.name.strip_prefix("OUTPUT");
    let by_name = spec.inputs.iter().position(|input| number.is_some() && input.name.strip_prefix("INPUT") == number);
    let source = by_name.unwrap_or(index);
    let Some(input) = spec.inputs.get(source) else {
        return Err(Error::invalid("expected input and output indices to match"));
    };
    if input.datatype != output.datatype {
        let (left, right) = (config_name(input.datatype), config_name(output.datatype));
        return Err(Error::invalid(format!("expected input and output datatype to match, got {left} and {right}")));
    }
    let axis = usize::from(spec.has_batch_axis() && !input.is_shape_tensor);
    let [left, right] = [input, output].map(|tensor| tensor.model_shape.get(axis..).unwrap_or_default());
    if left != right || input.is_shape_tensor != output.is_shape_tensor {
        let (left, right) = (ShapeText(left), ShapeText(right));
        return Err(Error::invalid(format!("expected input and output shape to match, got {left} and {right}")));
    }
    Ok(source)
}

/// Returns the duration of an execution. Triton multiplies it by the instance's device number if
/// `instance_wise_delay_multiplier` is above zero; the CPU is device 0, which counts as 1, so it is
/// only checked here.
pub(super) fn delay(spec: &ModelSpec) -> Result<Duration, Error> {
    number(spec, "instance_wise_delay_multiplier")?;
    number(spec, "execute_delay_ms").map(|delay_ms| Duration::from_millis(u64::from(delay_ms)))
}

fn number(spec: &ModelSpec, key: &str) -> Result<u32, Error> {
    let Some(text) = spec.parameters.get(key) else { return Ok(0) };
    text.parse().map_err(|_| {
        let name = &spec.name;
        Error::invalid(format!("parameter '{key}' of model '{name}' must be a whole number, got '{text}'"))
    })
}

/// Parks until the time is over, and returns the time then. It may consume an `unpark` that was
/// meant for the worker's own waiting: a worker looks at its queue before it parks again.
pub(super) fn wait(clock: Clock, delay: Duration) -> base::time::Instant {
    let until = clock() + delay;
    loop {
        let now = clock();
        let left = until.since(now);
        if left.is_zero() {
            return now;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;

    use super::*;
    use crate::threads::enter;
    use crate::trial::{TrialAnswers, no_clock, spec, tensor};
    use base::tensor::{Datatype, strings};
    use base::time::Instant;

    fn load(spec: ModelSpec) -> Result<Box<dyn LoadedModel>, Error> {
        Identity::default().load(&Arc::new(spec), Path::new(""))
    }

    fn refusal(spec: ModelSpec) -> String {
        load(spec).err().map(|error| error.text().to_owned()).unwrap_or_default()
    }

    #[test]
    fn every_datatype_comes_back_as_the_very_same_bytes() {
        let mut words = Vec::new();
        strings::encode(b"one", &mut words);
        for datatype in Datatype::ALL {
            let contents = datatype.size().map_or_else(|| words.clone(), |size| vec![7; size]);
            let input = Tensor { datatype, shape: [1, 1].into_iter().collect(), contents: Bytes::from(contents) };
            let model = load(spec(8, &[("INPUT0", datatype, &[1])], &[("OUTPUT0", datatype, &[1])])).unwrap();
            let answers = TrialAnswers::default();
            let batch = answers.batch(vec![(vec![input.clone()], 1), (vec![input.clone()], 1)]);
            enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
            for output in answers.outputs(2) {
                let [output] = output.unwrap().try_into().unwrap();
                assert_eq!(output, input, "{datatype:?}");
                assert_eq!(output.contents.as_ptr(), input.contents.as_ptr(), "{datatype:?}");
            }
        }
    }

    #[test]
    fn outputs_are_paired_by_number_and_else_by_place() {
        let check = |names: [&str; 4], want: [f32; 2]| {
            let [in_0, in_1, out_0, out_1] = names;
            let fp32 = Datatype::Fp32;
            let spec = spec(0, &[(in_0, fp32, &[1]), (in_1, fp32, &[1])], &[(out_0, fp32, &[1]), (out_1, fp32, &[1])]);
            let answers = TrialAnswers::default();
            let batch = answers.batch(vec![(vec![tensor(&[1], &[10_f32]), tensor(&[1], &[11_f32])], 1)]);
            let model = load(spec).unwrap();
            enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
            let got = answers.outputs(1).remove(0).unwrap();
            assert_eq!(got, want.map(|value| tensor(&[1], &[value])), "{names:?}");
        };
        check(["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"], [10.0, 11.0]);
        check(["INPUT0", "INPUT1", "OUTPUT1", "OUTPUT0"], [11.0, 10.0]);
        check(["a", "b", "c", "d"], [10.0, 11.0]);
    }

    #[test]
    fn an_optional_input_that_is_left_out_comes_back_as_zeros() {
        let (fp32, bytes) = (Datatype::Fp32, Datatype::Bytes);
        let io: [(&str, Datatype, &[i64]); 3] =
            [("INPUT0", fp32, &[1]), ("INPUT1", fp32, &[-1, 2]), ("INPUT2", bytes, &[2])];
        let outputs = io.map(|(name, datatype, dims)| (name.replace("IN", "OUT"), datatype, dims));
        let outputs: Vec<_> = outputs.iter().map(|(name, datatype, dims)| (name.as_str(), *datatype, *dims)).collect();
        let mut model = spec(8, &io, &outputs);
        model.inputs[1].is_optional = true;
        model.inputs[2].is_optional = true;
        let given = tensor(&[2, 1], &[1_f32, 2.0]);
        let left_out = |datatype| Tensor { datatype, shape: Shape::new(), contents: Default::default() };
        let answers = TrialAnswers::default();
        let batch = answers.batch(vec![(vec![given.clone(), left_out(fp32), left_out(bytes)], 2)]);
        enter(1, |threads| load(model.clone()).unwrap().new_instance(threads).unwrap().run(batch));
        let got = answers.outputs(1).remove(0).unwrap();
        let empty = Tensor { datatype: bytes, shape: [2, 2].into_iter().collect(), contents: vec![0; 16].into() };
        assert_eq!(got, [given.clone(), tensor(&[2, 1, 2], &[0_f32; 4]), empty]);

        model.inputs[1].model_shape = [-1, 1 << 40].into_iter().collect();
        let batch = answers.batch(vec![(vec![given, left_out(fp32), left_out(bytes)], 2)]);
        model.outputs[1].model_shape = model.inputs[1].model_shape.clone();
        enter(1, |threads| load(model).unwrap().new_instance(threads).unwrap().run(batch));
        let error = answers.outputs(1).remove(0).unwrap_err();
        assert_eq!(
            error.text(),
            "input 'INPUT1' of model 'm' was left out, and its zeros are more than 67108864 bytes"
        );
    }

    #[test]
    fn a_configuration_that_does_not_pair_is_refused() {
        let (fp32, int32) = (Datatype::Fp32, Datatype::Int32);
        let input: (&str, Datatype, &[i64]) = ("INPUT0", fp32, &[16]);
        let check = |spec, want: &str| assert_eq!(refusal(spec), want);
        check(spec(8, &[input], &[]), "model configuration must have equal input/output pairs");
        check(
            spec(8, &[input], &[("OUTPUT0", int32, &[16])]),
            "expected input and output datatype to match, got TYPE_FP32 and TYPE_INT32",
        );
        check(
            spec(8, &[input], &[("OUTPUT0", fp32, &[-1, 2])]),
            "expected input and output shape to match, got [16] and [-1,2]",
        );
        let with = |key: &str, value: &str| {
            let mut spec = spec(8, &[input], &[("OUTPUT0", fp32, &[16])]);
            spec.parameters.insert(key.to_owned(), value.to_owned());
            spec
        };
        check(
            with("execute_delay_ms", "-1"),
            "parameter 'execute_delay_ms' of model 'm' must be a whole number, got '-1'",
        );
        check(
            with("creation_delay_sec", "x"),
            "parameter 'creation_delay_sec' of model 'm' must be a whole number, got 'x'",
        );
        assert!(load(with("instance_wise_delay_multiplier", "2")).unwrap().may_run_inline());
        assert!(!load(with("execute_delay_ms", "2")).unwrap().may_run_inline());
    }

    #[test]
    fn a_delay_is_waited_for_once_a_batch_and_counts_as_computing() {
        static NOW_MS: AtomicU64 = AtomicU64::new(0);
        let clock: Clock = || Instant::from_micros(NOW_MS.fetch_add(1, Ordering::Relaxed) * 1000);
        let mut spec = spec(8, &[("INPUT0", Datatype::Fp32, &[1])], &[("OUTPUT0", Datatype::Fp32, &[1])]);
        spec.parameters.insert("execute_delay_ms".to_owned(), "4".to_owned());
        let model = load(spec).unwrap();
        let answers = TrialAnswers::default();
        let mut batch = answers.batch(vec![(vec![tensor(&[1, 1], &[1_f32])], 1), (vec![tensor(&[1, 1], &[2_f32])], 1)]);
        batch.clock = clock;
        enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
        for answer in answers.take(2) {
            assert_eq!(answer.stamps.compute_infer_duration(), Duration::from_millis(5));
            assert_eq!(answer.stamps.compute_output_duration(), Duration::ZERO);
        }
    }

    #[test]
    fn a_request_without_its_inputs_fails_alone() {
        let model = load(spec(8, &[("INPUT0", Datatype::Fp32, &[1])], &[("OUTPUT0", Datatype::Fp32, &[1])])).unwrap();
        let answers = TrialAnswers::default();
        let mut batch = answers.batch(vec![(vec![], 1), (vec![tensor(&[1, 1], &[2_f32])], 1)]);
        batch.clock = no_clock;
        enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
        let got = answers.outputs(2);
        assert_eq!(got[0].as_ref().unwrap_err().text(), "model 'm' takes 1 inputs but 0 came");
        assert!(got[1].is_ok());
    }

    #[test]
    fn as_tritons_it_counts_the_bytes_of_its_inputs_and_its_responses_have_parameters() {
        let metrics = CustomMetrics::new(Vec::new());
        let spec = spec(8, &[("INPUT0", Datatype::Fp32, &[-1])], &[("OUTPUT0", Datatype::Fp32, &[-1])]);
        let load = |identity: Identity| identity.load(&Arc::new(spec.clone()), Path::new("m/3")).unwrap();
        let run = |model: &dyn LoadedModel| {
            let answers = TrialAnswers::default();
            let batch =
                answers.batch(vec![(vec![tensor(&[1, 2], &[1_f32, 2.0])], 1), (vec![tensor(&[1, 1], &[2_f32])], 1)]);
            enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
            let names = |answer: crate::Answer| {
                answer
                    .parameters
                    .map(|parameters| parameters.0.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())
            };
            answers.take(2).into_iter().map(names).collect::<Vec<_>>()
        };
        let model = load(Identity::as_tritons(&metrics));
        let want = ["param0", "param1", "param2", "param3"].map(str::to_owned).to_vec();
        assert_eq!(run(&*model), [Some(want.clone()), Some(want)]);
        let view = metrics.try_view().unwrap();
        let [family] = &view[..] else { panic!("one family") };
        assert_eq!((family.name.as_str(), family.series[0].sum()), ("input_byte_size_counter", 12.0));
        let labels = [("model", "m"), ("version", "3")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(family.series[0].labels(), labels);
        drop((model, view));
        assert!(metrics.try_view().unwrap().is_empty(), "it goes with the model");
        assert_eq!(run(&*load(Identity::default())), [None, None]);
    }
}

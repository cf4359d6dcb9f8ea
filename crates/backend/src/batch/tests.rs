use bytes::Bytes;

use super::*;
use crate::trial::{TrialAnswers, spec, tensor};
use base::tensor::Datatype;

const AS_IT_IS: InputConversion = InputConversion { alignment: 4, convert: None };

/// A batching model with one FP32 input and output `[-1, 2]`.
fn pairs() -> Arc<ModelSpec> {
    Arc::new(spec(8, &[("x", Datatype::Fp32, &[2])], &[("y", Datatype::Fp32, &[2])]))
}

fn rows(values: &[f32]) -> Tensor {
    tensor(&[values.len() as i64 / 2, 2], values)
}

/// The same tensor, its bytes moved by one from their required alignment.
fn misaligned(tensor: &Tensor) -> Tensor {
    let mut buffer = AlignedBuffer::with_capacity(tensor.contents.len() + 1);
    buffer.extend_from_slice(&[0]);
    buffer.extend_from_slice(&tensor.contents);
    Tensor { contents: buffer.freeze().slice(1..), ..tensor.clone() }
}

fn failing(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error> {
    out.extend_from_slice(contents);
    let is_bad = contents.contains(&0xff);
    if is_bad { Err(Error::invalid("no 255 here")) } else { Ok(()) }
}

#[test]
fn a_batch_of_one_is_not_copied_where_its_bytes_are_aligned() {
    let answers = TrialAnswers::default();
    let mut gather = Gather::new(pairs(), [AS_IT_IS]);
    let input = rows(&[1.0, 2.0]);

    let requests = gather.gather(answers.batch(vec![(vec![input.clone()], 1)]).requests);
    let contents = gather.contents(0, &requests);
    assert_eq!(contents.as_ptr(), input.contents.as_ptr());
    assert_eq!(gather.shape(0), [1, 2]);

    let crooked = misaligned(&input);
    let requests = gather.gather(answers.batch(vec![(vec![crooked.clone()], 1)]).requests);
    let contents = gather.contents(0, &requests);
    assert_ne!(contents.as_ptr(), crooked.contents.as_ptr());
    assert_eq!(contents, crooked.contents);
    assert!(contents.as_ptr().addr().is_multiple_of(64));
}

#[test]
fn requests_of_mixed_rows_lie_behind_one_another_in_buffers_that_are_used_again() {
    let answers = TrialAnswers::default();
    let mut gather = Gather::new(pairs(), [AS_IT_IS]);
    let mut address = None;
    for _ in 0..3 {
        let parts =
            [rows(&[1.0, 2.0]), misaligned(&rows(&[3.0, 4.0, 5.0, 6.0, 7.0, 8.0])), rows(&[9.0, 10.0, 11.0, 12.0])];
        let batch = answers.batch(parts.iter().map(|part| (vec![part.clone()], part.shape[0] as u32)).collect());
        let requests = gather.gather(batch.requests);
        let contents = gather.contents(0, &requests);
        let want: Vec<f32> = (1..=12).map(|value| value as f32).collect();
        assert_eq!(contents, bytemuck::cast_slice::<f32, u8>(&want));
        assert_eq!((gather.rows(), gather.shape(0)), (6, &[6, 2][..]));
        assert_eq!(*address.get_or_insert(contents.as_ptr()), contents.as_ptr());
    }
}

#[test]
fn outputs_are_cut_by_rows_and_share_their_memory() {
    let answers = TrialAnswers::default();
    let whole = rows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let labels = tensor(&[4], &[1_u8, 2, 3, 4]);
    let requests = answers.batch([1, 0, 2, 1].map(|count| (vec![], count)).to_vec()).requests;
    scatter(&pairs(), vec![whole.clone(), labels], requests);
    let got: Vec<_> = answers.outputs(4).into_iter().map(Result::unwrap).collect();
    assert_eq!(got[0], [rows(&[1.0, 2.0]), tensor(&[1], &[1_u8])]);
    assert_eq!(got[1], [tensor(&[0, 2], &[0_f32; 0]), tensor(&[0], &[0_u8; 0])]);
    assert_eq!(got[2], [rows(&[3.0, 4.0, 5.0, 6.0]), tensor(&[2], &[2_u8, 3])]);
    assert_eq!(got[3], [rows(&[7.0, 8.0]), tensor(&[1], &[4_u8])]);
    assert_eq!(got[2][0].contents.as_ptr().addr(), whole.contents.as_ptr().addr() + 8);
}

#[test]
fn outputs_too_short_for_their_rows_are_an_error_and_not_a_panic() {
    let answers = TrialAnswers::default();
    let short = Tensor { contents: Bytes::from_static(&[0; 12]), ..rows(&[0.0; 4]) };
    scatter(&pairs(), vec![short], answers.batch(vec![(vec![], 1), (vec![], 1)]).requests);
    let got = answers.outputs(2);
    assert!(got[0].is_ok());
    assert_eq!(got[1].as_ref().unwrap_err().text(), "an output has fewer bytes than its batch has rows");
}

#[test]
fn a_bad_request_fails_alone_and_leaves_no_trace_in_the_batch() {
    let spec = Arc::new(spec(8, &[("a", Datatype::Uint8, &[2]), ("b", Datatype::Uint8, &[1])], &[]));
    let bytes = InputConversion { alignment: 1, convert: None };
    let mut gather = Gather::new(spec, [bytes, InputConversion { alignment: 1, convert: Some(failing) }]);
    let answers = TrialAnswers::default();
    let entry = |a: u8, b: u8| (vec![tensor(&[1, 2], &[a, a]), tensor(&[1, 1], &[b])], 1);
    let requests =
        gather.gather(answers.batch(vec![entry(1, 0xff), entry(2, 2), entry(3, 0xff), entry(4, 4)]).requests);
    assert_eq!(gather.contents(0, &requests), [2, 2, 4, 4]);
    assert_eq!(gather.contents(1, &requests), [2, 4]);
    assert_eq!((gather.rows(), gather.shape(1)), (2, &[2, 1][..]));
    scatter(&pairs(), vec![], requests);
    let got = answers.take(4);
    for index in [0, 2] {
        let error = got[index].outputs.as_ref().unwrap_err();
        assert_eq!(error.text(), "input 'b' of model 'm': no 255 here");
    }
    assert_eq!(
        got.iter().map(|answer| (answer.batch_rows, answer.is_first)).collect::<Vec<_>>(),
        [(4, true), (2, true), (4, false), (2, false)]
    );
}

#[test]
fn what_no_decoder_lets_through_is_refused_and_not_run() {
    let fp32 = Datatype::Fp32;
    let spec = Arc::new(spec(8, &[("x", fp32, &[-1])], &[]));
    let sound = tensor(&[1, 2], &[1_f32, 2.0]);
    let check = |tensors: Vec<Tensor>, request_rows, want: &str| {
        let answers = TrialAnswers::default();
        let mut gather = Gather::new(Arc::clone(&spec), [AS_IT_IS]);
        let requests = vec![(vec![sound.clone()], 1), (tensors, request_rows)];
        assert_eq!(gather.gather(answers.batch(requests).requests).len(), 1);
        let error = answers.outputs(2).remove(1).unwrap_err();
        assert!(error.text().contains(want), "{error}");
    };
    check(vec![], 1, "takes 1 inputs but 0 came");
    check(vec![tensor(&[1, 2], &[1_i32, 2])], 1, "'x' of model 'm' is INT32 [1,2] in 8 bytes");
    check(vec![tensor(&[1, 2, 1], &[1_f32, 2.0])], 1, "FP32 [1,2,1]");
    check(vec![tensor(&[1, 2], &[1_f32, 2.0])], 2, "FP32 [1,2]");
    check(vec![tensor(&[1, 3], &[1_f32, 2.0])], 1, "[1,3] in 8 bytes");
    check(vec![tensor(&[1, 3], &[1_f32, 2.0, 3.0])], 1, "came in one batch");
}

#[test]
fn an_output_must_be_what_the_configuration_says() {
    let spec = spec(8, &[], &[("y", Datatype::Fp32, &[2, -1])]);
    let check = |output: Tensor, want: Result<(), &str>| {
        let outcome = check_output(&spec, 0, &output, 3, &[]);
        assert_eq!(outcome.as_ref().map(|rows| assert_eq!(*rows, OutputRows::AsExpected)).map_err(Error::text), want);
    };
    check(tensor(&[3, 2, 1], &[0_f32; 6]), Ok(()));
    check(tensor(&[3, 2, 0], &[0_f32; 0]), Ok(()));
    check(tensor(&[3, 2, 1], &[0_i32; 6]), Err("output 'y' of model 'm' must be FP32 but came as INT32"));
    let shape = "output 'y' of model 'm' must have shape [3,2,-1] but came with ";
    check(tensor(&[1, 2, 3], &[0_f32; 6]), Err(&format!("{shape}[1,2,3]")));
    check(tensor(&[3, 1, 2], &[0_f32; 6]), Err(&format!("{shape}[3,1,2]")));
    check(tensor(&[3, 2], &[0_f32; 6]), Err(&format!("{shape}[3,2]")));
    check(tensor(&[3, 2, 2], &[0_f32; 6]), Err("output 'y' of model 'm' has not the bytes of its shape"));
    assert!(check_output(&spec, 1, &tensor(&[3], &[0_f32; 3]), 3, &[]).is_err());
}

/// The shape of the output `y` of a response to a request of 3 rows, or the reason against it.
fn checked(rows_max: u32, is_batched: bool, dims: &[i64], output: Tensor) -> Result<Shape, String> {
    let mut spec = spec(rows_max, &[], &[("y", Datatype::Fp32, dims), ("z", Datatype::Fp32, &[1])]);
    spec.python = Some(Arc::new(model::PythonModel { is_batched, ..Default::default() }));
    // The model left the second one out.
    let mut outputs = [output, Tensor { datatype: Datatype::Fp32, shape: Shape::new(), contents: Bytes::new() }];
    let outcome = check_response(&spec, &mut outputs, 3).map_err(|error| error.text().to_owned());
    outcome.map(|()| outputs[0].shape.clone())
}

/// `max_batch_size` and a scheduler, the dims, the shape that came, and the shape or the one that it must have.
type ShapeCase = ((u32, bool), &'static [i64], &'static [i64], Result<&'static [i64], &'static str>);

#[test]
fn an_output_of_a_python_model_must_be_what_the_configuration_says() {
    let came = tensor(&[2], &[0_i32; 2]);
    let want = "output 'y' of model 'm' must be FP32 but came as INT32";
    assert_eq!(checked(0, false, &[2], came), Err(want.to_owned()));
    // Not batched, batched with a scheduler, and without one: the shape that came, and the outcome.
    let (plain, batched, single) = ((0, false), (8, true), (8, false));
    let cases: &[ShapeCase] = &[
        (plain, &[2, -1], &[2, 5], Ok(&[2, 5])),
        (plain, &[2, -1], &[2, 0], Ok(&[2, 0])),
        (plain, &[2, -1], &[3, 5], Err("[2,-1]")),
        (plain, &[-1], &[1, 2], Err("[-1]")),
        (plain, &[-1], &[], Err("[-1]")),
        (plain, &[1], &[], Ok(&[1])),
        (batched, &[2], &[3, 2], Ok(&[3, 2])),
        (batched, &[2], &[2, 2], Err("[3,2]")),
        (batched, &[2], &[3, 1], Err("[3,2]")),
        (batched, &[-1], &[3], Err("[3,-1]")),
        (batched, &[1], &[3], Ok(&[3, 1])),
        (batched, &[1], &[6], Err("[3,1]")),
        (single, &[2], &[3, 2], Ok(&[3, 2])),
        (single, &[2], &[7, 2], Ok(&[7, 2])),
        (single, &[2], &[2], Ok(&[2])),
        (single, &[2], &[3], Err("[3,2]")),
        (single, &[-1], &[5], Ok(&[5])),
        (single, &[-1], &[1, 1, 1], Err("[3,-1]")),
        (single, &[1], &[], Err("[3,1]")),
    ];
    for ((rows_max, is_batched), dims, shape, want) in cases {
        let count = shape.iter().product::<i64>();
        let outcome = checked(*rows_max, *is_batched, dims, tensor(shape, &vec![0_f32; count as usize]));
        let shape_text =
            |want: &str| format!("output 'y' of model 'm' must have shape {want} but came with {}", ShapeText(shape));
        let want = want.map(Shape::from_slice).map_err(shape_text);
        assert_eq!(outcome, want, "{rows_max} {is_batched} {dims:?} {shape:?}");
    }
}

#[test]
fn an_output_whose_shape_was_read_from_the_file_may_have_another() {
    let mut spec = spec(8, &[], &[("y", Datatype::Fp32, &[2])]);
    spec.outputs[0].is_derived = true;
    let check = |output: Tensor, want: Result<OutputRows, &str>| {
        let outcome = check_output(&spec, 0, &output, 3, &[]);
        assert_eq!(outcome.as_ref().copied().map_err(Error::text), want);
    };
    check(tensor(&[3, 2], &[0_f32; 6]), Ok(OutputRows::AsExpected));
    check(tensor(&[3, 4], &[0_f32; 12]), Ok(OutputRows::AsExpected));
    check(tensor(&[3], &[0_f32; 3]), Ok(OutputRows::AsExpected));
    check(tensor(&[1, 6], &[0_f32; 6]), Ok(OutputRows::Unknown));
    check(tensor(&[], &[0_f32; 1]), Ok(OutputRows::Unknown));
    check(tensor(&[3, 2], &[0_i32; 6]), Err("output 'y' of model 'm' must be FP32 but came as INT32"));
    check(tensor(&[3, 4], &[0_f32; 6]), Err("output 'y' of model 'm' has not the bytes of its shape"));
}

#[test]
fn strings_of_several_requests_are_gathered_and_cut_apart_again() {
    let spec = Arc::new(spec(8, &[("x", Datatype::Bytes, &[2])], &[("y", Datatype::Bytes, &[2])]));
    let words = |words: &[&str]| {
        let mut contents = Vec::new();
        words.iter().for_each(|word| base::tensor::strings::encode(word.as_bytes(), &mut contents));
        let shape = [words.len() as i64 / 2, 2].into_iter().collect();
        Tensor { datatype: Datatype::Bytes, shape, contents: contents.into() }
    };
    let answers = TrialAnswers::default();
    let mut gather = Gather::new(Arc::clone(&spec), [InputConversion { alignment: 1, convert: None }]);
    let parts = [words(&["one", ""]), words(&["a", "b", "c", "d"]), words(&["", "last"])];
    let mut entries: Vec<_> = parts.iter().map(|part| (vec![part.clone()], part.shape[0] as u32)).collect();
    // One string too few for its shape.
    entries.push((vec![Tensor { shape: [2, 2].into_iter().collect(), ..words(&["x", "y"]) }], 2));
    let requests = gather.gather(answers.batch(entries).requests);
    let whole = words(&["one", "", "a", "b", "c", "d", "", "last"]);
    assert_eq!(gather.contents(0, &requests), whole.contents);
    assert_eq!(check_output(&spec, 0, &whole, 4, &[]), Ok(OutputRows::AsExpected));
    let short = Tensor { contents: whole.contents.slice(..whole.contents.len() - 1), ..whole.clone() };
    assert!(check_output(&spec, 0, &short, 4, &[]).unwrap_err().text().contains("has not the bytes of its shape"));
    scatter(&spec, vec![whole], requests);
    let got = answers.outputs(4);
    for (got, want) in got.iter().zip(parts) {
        assert_eq!(got.as_ref().unwrap(), &[want]);
    }
    assert!(got[3].as_ref().unwrap_err().text().contains("which no check should have let through"));
}

//! Requests as the documentation of TEI, OpenAI, Cohere and vLLM has them, good and bad, through models that compute their
//! outputs from the letters of a text: status and body of each answer.

use model::ModelSpec;

use super::super::*;
use super::{classifier, floats, integers, reranker, sparse, texts};
use crate::infer::InferRequest;
use crate::testing::{input, output, spec};
use base::error::{Code, Error};
use base::tensor::strings::Strings;
use base::tensor::{Datatype, Tensor};

/// A server with a model for each task, each of four rows at most.
struct Models {
    embedder: ModelSpec,
    sparse: ModelSpec,
    reranker: ModelSpec,
    /// A reranker that gives the network's numbers too.
    judge: ModelSpec,
    classifier: ModelSpec,
    scorer: ModelSpec,
}

impl Models {
    fn new() -> Self {
        let optional = |name, datatype, dims: &[i64]| {
            let mut tensor = input(name, datatype, dims);
            tensor.is_optional = true;
            tensor
        };
        let options = || {
            [
                optional("prompt_name", Datatype::Bytes, &[1]),
                optional("truncation", Datatype::Bytes, &[1]),
                optional("token_ids", Datatype::Int64, &[-1]),
            ]
        };
        let text = || input("text", Datatype::Bytes, &[1]);
        let inputs = std::iter::once(text()).chain(options()).collect();
        let outputs = vec![
            output("embedding", Datatype::Fp32, &[3]),
            output("token_count", Datatype::Int64, &[1]),
            output("token_embedding", Datatype::Fp32, &[-1, 2]),
            output("token_mask", Datatype::Int64, &[-1]),
            output("raw_embedding", Datatype::Fp32, &[3]),
        ];
        let mut embedder = spec(4, inputs, outputs);
        let on_request = "token_embedding,token_mask,raw_embedding".to_owned();
        embedder.parameters.insert(model::spec::ON_REQUEST_PARAMETER.to_owned(), on_request);
        let mut classifier = classifier();
        classifier
            .outputs
            .extend([output("raw_label", Datatype::Bytes, &[2]), output("raw_score", Datatype::Fp32, &[2])]);
        let mut judge = reranker();
        judge.outputs.push(output("raw_score", Datatype::Fp32, &[1]));
        let scorer = spec(4, vec![text()], vec![output("score", Datatype::Fp32, &[2])]);
        Self { embedder, sparse: sparse(), reranker: reranker(), judge, classifier, scorer }
    }

    fn find(&self, call: &TextRequest, named: &str) -> &ModelSpec {
        let all = [&self.embedder, &self.sparse, &self.reranker, &self.classifier];
        match named {
            "scorer" => &self.scorer,
            "classifier" => &self.classifier,
            "sparse" => &self.sparse,
            "reranker" => &self.reranker,
            "judge" => &self.judge,
            _ => all.into_iter().find(|spec| call.is_for(spec)).unwrap_or(&self.embedder),
        }
    }
}

/// The outputs of the model: numbers of letters, or sums of token ids.
fn run(spec: &ModelSpec, request: &InferRequest) -> Vec<Tensor> {
    let column = |name: &str| {
        let tensor = spec.input_index(name).map(|index| &request.inputs[index]).filter(|tensor| tensor.is_given());
        tensor.map(|tensor| {
            let texts = Strings::new(&tensor.contents);
            texts.map(|text| String::from_utf8(text.unwrap().to_vec()).unwrap()).collect::<Vec<_>>()
        })
    };
    let rows = i64::from(request.rows);
    let sizes: Vec<f32> = column("text").unwrap().iter().map(|text| text.len() as f32).collect();
    if spec.output_index("embedding").is_some() {
        let ids = spec.input_index("token_ids").map(|index| &request.inputs[index]).filter(|ids| ids.is_given());
        let sums: Vec<f32> = match ids {
            Some(ids) => {
                let numbers: Vec<i64> = ids.contents.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id)).collect();
                let own = |row: &[i64]| row.iter().filter(|id| **id >= 0).sum::<i64>() as f32;
                numbers.chunks(numbers.len() / rows as usize).map(own).collect()
            }
            None => vec![0.0; rows as usize],
        };
        let prompt = column("prompt_name").map_or(0.0, |names| names[0].len() as f32);
        let vectors: Vec<f32> = sizes.iter().zip(&sums).flat_map(|(size, sum)| [*size, *sum, prompt]).collect();
        let tokens: Vec<f32> = sizes.iter().flat_map(|size| [*size, 1.0, *size, 2.0]).collect();
        let missing = |index: usize| {
            let asked = request.plan.outputs.iter().any(|output| output.index == index);
            move |tensor: Tensor| {
                if asked {
                    tensor
                } else {
                    Tensor { shape: Default::default(), contents: Default::default(), ..tensor }
                }
            }
        };
        return vec![
            floats(&[rows, 3], &vectors),
            integers(&[rows, 1], &vec![2; rows as usize]),
            missing(2)(floats(&[rows, 2, 2], &tokens)),
            missing(3)(integers(&[rows, 2], &[1, 0].repeat(rows as usize))),
            missing(4)(floats(&[rows, 3], &vectors.iter().map(|value| value * 2.0).collect::<Vec<_>>())),
        ];
    }
    if spec.output_index("index").is_some() {
        let values: Vec<f32> = sizes.iter().flat_map(|size| [*size, 0.0]).collect();
        let indices = [5, 0].repeat(rows as usize);
        return vec![
            integers(&[rows, 2], &indices),
            floats(&[rows, 2], &values),
            integers(&[rows, 1], &vec![1; rows as usize]),
        ];
    }
    if spec.output_index("label").is_some() {
        let labels = ["good", "bad"].repeat(rows as usize);
        let row = |scores: [f32; 2]| floats(&[rows, 2], &scores.repeat(rows as usize));
        return vec![texts(&[rows, 2], &labels), row([0.75, 0.25]), texts(&[rows, 2], &labels), row([2.5, -1.0])];
    }
    if spec.input_index("query").is_some() {
        // The network's number of a text of three letters is 0.
        let raw: Vec<f32> = sizes.iter().map(|size| size - 3.0).collect();
        return vec![floats(&[rows, 1], &sizes), floats(&[rows, 1], &raw)];
    }
    vec![floats(&[rows, 2], &[0.25, 0.75].repeat(rows as usize))]
}

/// The status and the body of the answer.
fn reply_to(models: &Models, path: TextPath, body: &str) -> (u16, String) {
    let answer = || -> Result<Vec<u8>, Error> {
        let call = TextRequest::read(path, body.as_bytes())?;
        let spec = models.find(&call, call.model.as_deref().unwrap_or_default());
        let request = request(&call, spec)?;
        let outputs = run(spec, &request);
        let tokens = token_count(spec, &outputs);
        encode(&call, spec, &TextOutcome::Outputs(outputs), AnswerFacts { id: "1f", created: 9, tokens })
    };
    let reply = answer().map_or_else(|error| error_reply(path, &error), reply);
    (reply.status, String::from_utf8(reply.body.concat()).unwrap())
}

fn path_of(url: &str) -> TextPath {
    if url == "/" { TextPath::Own } else { TextPath::from_url(url).unwrap() }
}

/// Lines of `URL`, body, status, and the answer or the text of the error.
const TABLE: &str = include_str!("table.txt");

#[test]
fn every_request_of_the_table_has_its_answer() {
    let models = Models::new();
    let (mut count, mut wrong) = (0, String::new());
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let [url, body, status, want] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
        let path = path_of(url);
        let (got, answer) = reply_to(&models, path, body);
        let status: u16 = status.parse().unwrap();
        let want = match status {
            200 => want.to_owned(),
            400 => failure(path, status, "Empty", want),
            _ => failure(path, status, "Validation", want),
        };
        if (got, answer.as_str()) != (status, want.as_str()) {
            wrong += &format!("{line}\n  got {got} {answer}\n  for {status} {want}\n");
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 130, "{count}");
}

fn failure(path: TextPath, status: u16, kind: &str, text: &str) -> String {
    let text = serde_json::Value::from(text).to_string();
    if path.is_of_openai() {
        format!(r#"{{"message":{text},"code":{status},"type":"{kind}"}}"#)
    } else {
        format!(r#"{{"error":{text},"error_type":"{kind}"}}"#)
    }
}

/// A good body of each path.
const GOOD: [(&str, &str); 12] = [
    ("/", r#"{"inputs": "abc""#),
    ("/classify", r#"{"input": "abc", "model": "scorer""#),
    ("/decode", r#"{"ids": [1, 2]"#),
    ("/embed", r#"{"inputs": "abc""#),
    ("/embed_all", r#"{"inputs": "abc""#),
    ("/embed_sparse", r#"{"inputs": "abc""#),
    ("/v1/embeddings", r#"{"input": "abc""#),
    ("/predict", r#"{"inputs": "abc""#),
    ("/rerank", r#"{"query": "q", "texts": ["abc"]"#),
    ("/v2/rerank", r#"{"query": "q", "documents": ["abc"]"#),
    ("/similarity", r#"{"inputs": {"source_sentence": "s", "sentences": ["abc"]}"#),
    ("/tokenize", r#"{"inputs": "abc""#),
];

/// Every option of every path, with every kind of value that it is not: the error names the member, the kind and what is due.
#[test]
fn every_option_refuses_the_kinds_of_values_that_it_is_not() {
    let kinds =
        [("1", "a number"), ("true", "true or false"), ("[]", "a list"), ("{}", "an object"), (r#""x""#, "a text")];
    let mut count = 0;
    for (url, good) in GOOD {
        let path = path_of(url);
        let mut check = |member: &str, value: &str, want: String| {
            let body = format!("{good}, \"{member}\": {value}}}");
            let error =
                TextRequest::read(path, body.as_bytes()).map_err(|error| (error.code(), error.text().to_owned()));
            assert_eq!(error, Err((Code::InvalidArgument, want)), "{url} {body}");
            count += 1;
        };
        for (value, kind) in kinds {
            for member in ["model", "prompt_name", "truncation_direction"].iter().filter(|_| kind != "a text") {
                // Those of `/classify` and others have a model already.
                if !good.contains(&format!("\"{member}\"")) {
                    check(member, value, format!("'{member}' must be a text, but is {kind}"));
                }
            }
            for member in ["truncate", "raw_scores", "normalize"].iter().filter(|_| kind != "true or false") {
                check(member, value, format!("'{member}' must be true or false, but is {kind}"));
            }
            if kind != "a number" {
                check("dimensions", value, "'dimensions' must be an integer from 1 to 1048576".to_owned());
            }
        }
    }
    assert!(count >= 280, "{count}");
}

/// Members that a path does not have, and nulls, change nothing.
#[test]
fn unknown_members_and_nulls_are_passed_over() {
    for (url, good) in GOOD {
        let read = |more: &str| TextRequest::read(path_of(url), format!("{good}{more}}}").as_bytes()).unwrap();
        let plain = read("");
        for more in [
            r#", "user": "me""#,
            r#", "input_type": "query", "priority": 0"#,
            r#", "truncate": null, "normalize": null, "raw_scores": null, "dimensions": null, "prompt_name": null"#,
            r#", "truncate_prompt_tokens": 5, "max_tokens_per_doc": 9"#,
        ] {
            assert_eq!(read(more), plain, "{url} {more}");
        }
    }
}

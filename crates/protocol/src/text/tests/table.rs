//! Requests as the documentation of TEI, OpenAI, Cohere and vLLM has them, good and bad, through models that compute their
//! outputs from the letters of a text: status and body of each answer.

use model::ModelSpec;

use super::super::*;
use super::{classifier, floats, integers, reranker, sparse, texts};
use crate::infer::InferRequest;
use crate::testing::{input, output, spec};
use base::error::Error;
use base::tensor::strings::Strings;
use base::tensor::{Datatype, Tensor};
use model::spec::steps::{ShownToken, ShowsTokens};

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

/// A tokenizer of words between spaces: the id of a word is its size, `[CLS]` is 101 and `[SEP]` 102.
struct Words;

impl ShowsTokens for Words {
    fn shown(
        &self,
        text: &str,
        prompt_name: Option<&str>,
        adds_special_tokens: bool,
    ) -> Result<Vec<ShownToken>, Error> {
        if let Some(name) = prompt_name.filter(|name| *name != "query") {
            return Err(Error::invalid(format!("'prompt_name' has \"{name}\"; known are \"query\"")));
        }
        let text = format!("{}{text}", if prompt_name.is_some() { "q: " } else { "" });
        let word = |word: &str| {
            let start = word.as_ptr() as usize - text.as_ptr() as usize;
            let span = Some((start, start + word.len()));
            ShownToken { id: word.len() as u32, text: word.to_owned(), is_special: false, span }
        };
        let special = |id, text: &str| ShownToken { id, text: text.to_owned(), is_special: true, span: None };
        let mut tokens: Vec<_> = text.split_whitespace().map(word).collect();
        if adds_special_tokens {
            tokens.insert(0, special(101, "[CLS]"));
            tokens.push(special(102, "[SEP]"));
        }
        Ok(tokens)
    }

    fn decoded(&self, ids: &[u32], skips_special_tokens: bool) -> Result<String, Error> {
        let word = |id: &u32| match id {
            101 | 102 if skips_special_tokens => None,
            101 => Some("[CLS]".to_owned()),
            102 => Some("[SEP]".to_owned()),
            id if *id > 102 => Some(String::new()),
            id => Some("x".repeat(*id as usize)),
        };
        Ok(ids.iter().filter_map(word).collect::<Vec<_>>().join(" "))
    }

    fn length_max(&self) -> Option<usize> {
        None
    }
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

/// The answer of a model.
fn answer_of(models: &Models, call: &TextRequest, spec: &ModelSpec) -> Result<Vec<u8>, Error> {
    let (outcome, tokens) = if call.path.is_of_tokenizer() {
        let has_tokenizer = !std::ptr::eq(spec, &models.scorer);
        (tokens(call, spec, has_tokenizer.then_some(&Words as &dyn ShowsTokens))?, None)
    } else {
        let outputs = run(spec, &request(call, spec)?);
        let tokens = token_count(spec, &outputs);
        (TextOutcome::Outputs(outputs), tokens)
    };
    encode(call, spec, &outcome, AnswerFacts { id: "1f", created: 9, tokens })
}

/// The status and the body of the answer.
fn reply_to(models: &Models, path: TextPath, body: &str) -> (u16, String) {
    let body = body.as_bytes();
    let answer = || -> Result<Vec<u8>, Error> {
        if path == TextPath::Vertex {
            let name = named_model(body)?.unwrap_or_default();
            let spec = models.find(&TextRequest::default(), &name);
            let calls = instances(body, TextTask::of(spec).unwrap())?;
            let answers: Result<Vec<_>, Error> = calls.iter().map(|call| answer_of(models, call, spec)).collect();
            return Ok(predictions(&answers?));
        }
        let call = TextRequest::read(path, body)?;
        answer_of(models, &call, models.find(&call, call.model.as_deref().unwrap_or_default()))
    };
    shown(&answer().map_or_else(|error| error_reply(path, &error), reply))
}

fn shown(reply: &wire::message::Reply) -> (u16, String) {
    (reply.status, String::from_utf8(reply.body.concat()).unwrap())
}

/// The answer to GET: the column of the body has the state of the server, or the model.
fn reply_to_get(models: &Models, url: &str, of: &str) -> (u16, String) {
    shown(&match url {
        "/health" => health_reply(of == "ready"),
        "/v1/models" => reply(models_json(&of.split_whitespace().collect::<Vec<_>>())),
        _ => {
            let call = TextRequest { path: TextPath::Embed, ..TextRequest::default() };
            reply(TextModelFacts::new(models.find(&call, of), "1.0").unwrap().json())
        }
    })
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
        let is_read = ["/health", "/info", "/v1/models"].contains(&url);
        let path = if is_read { TextPath::Embed } else { path_of(url) };
        let (got, answer) = if is_read { reply_to_get(&models, url, body) } else { reply_to(&models, path, body) };
        let status: u16 = status.parse().unwrap();
        let want = match status {
            200 => want.to_owned(),
            503 => failure(path, status, "Unhealthy", want),
            400 => failure(path, status, "Empty", want),
            _ => failure(path, status, "Validation", want),
        };
        if (got, answer.as_str()) != (status, want.as_str()) {
            wrong += &format!("{line}\n  got {got} {answer}\n  for {status} {want}\n");
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 200, "{count}");
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

/// Every option of every path, with every kind of value that it is not: status and body, whose text names the member, the kind
/// and what is due.
#[test]
fn every_option_refuses_the_kinds_of_values_that_it_is_not() {
    let models = Models::new();
    let kinds =
        [("1", "a number"), ("true", "true or false"), ("[]", "a list"), ("{}", "an object"), (r#""x""#, "a text")];
    let mut count = 0;
    for (url, good) in GOOD {
        let path = path_of(url);
        let mut check = |member: &str, value: &str, want: String| {
            let body = format!("{good}, \"{member}\": {value}}}");
            let got = reply_to(&models, path, &body);
            assert_eq!(got, (422, failure(path, 422, "Validation", &want)), "{url} {body}");
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

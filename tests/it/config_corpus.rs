//! Repositories after the patterns of public ones, in `tests/configs/repositories/`: each configuration is served, or
//! refused, as the table says, by `deuteron serve` and `deuteron config show` alike, on the programs themselves.
//! `UPDATE_EXPECT=1` writes the results into the table, for a person to read before they are kept.
//!
//! A case is as in `configs`, with other keys: the `directory` of the model, unlike those of all other cases; its
//! `files` beside the configuration [1/model.onnx]; the `config`'s file name [config.pbtxt]; the signature of its ONNX
//! `model`, which adds its inputs up; another model `also`, its name and its configuration in one line; and the `flags`
//! of the server. A case without text has no configuration. The served configuration is told in one line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use deuteron::tensor::Datatype;
use serde_json::Value;

use crate::configs::{Case, cases, signature, texts_in};
use crate::support::folder::Folder;
use crate::support::onnx::builder::INT32;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::{http, server::Ports, server::Server};

const EMBEDDED: &str = "--onnx-engine=embedded";

/// The sum of all inputs, cast and repeated to the shape of each output.
fn onnx(text: &str) -> Vec<u8> {
    let signature = signature(text);
    let code = |datatype: Datatype| match datatype {
        Datatype::Fp32 => FLOAT,
        Datatype::Int64 => INT64,
        Datatype::Int32 => INT32,
        other => panic!("{text}: {other:?}"),
    };
    let longs = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let mut onnx = Onnx::default().constant("column", INT64, &[2], &longs(&[-1, 1]));
    let mut sum = String::new();
    for (index, input) in signature.inputs.iter().enumerate() {
        let shape = input.shape.clone().unwrap_or_default();
        let [axes, float, reduced, column, total] =
            ["axes", "float", "reduced", "column", "total"].map(|name| format!("{name}{index}"));
        let rest: Vec<i64> = (1..).take(shape.len() - 1).collect();
        onnx =
            onnx.input(&input.name, code(input.datatype), &shape).node("Cast", &[&input.name], &[&float], &[("to", 1)]);
        let mut last = float;
        if !rest.is_empty() {
            onnx = onnx.constant(&axes, INT64, &[rest.len() as i64], &longs(&rest));
            onnx = onnx.node("ReduceSum", &[&last, &axes], &[&reduced], &[]);
            last = reduced;
        }
        onnx = onnx.node("Reshape", &[&last, "column"], &[&column], &[]);
        sum = match sum.as_str() {
            "" => column,
            sum => {
                onnx = onnx.node("Add", &[sum, &column], &[&total], &[]);
                total
            }
        };
    }
    for (index, output) in signature.outputs.iter().enumerate() {
        let shape = output.shape.clone().unwrap_or_default();
        let [weights, product, sizes, shaped] =
            ["weights", "product", "sizes", "shaped"].map(|name| format!("{name}{index}"));
        let mut size: Vec<i64> = shape.iter().map(|size| (*size).max(1)).collect();
        let count: i64 = size.iter().skip(1).product();
        size[0] = -1;
        let ones: Vec<u8> = (0..count).flat_map(|_| 1_f32.to_le_bytes()).collect();
        onnx = onnx
            .constant(&weights, FLOAT, &[1, count], &ones)
            .constant(&sizes, INT64, &[size.len() as i64], &longs(&size))
            .node("MatMul", &[&sum, &weights], &[&product], &[])
            .node("Reshape", &[&product, &sizes], &[&shaped], &[])
            .node("Cast", &[&shaped], &[&output.name], &[("to", code(output.datatype))])
            .output(&output.name, code(output.datatype), &shape);
    }
    onnx.into_bytes()
}

/// Writes the repository of a case and returns its path.
fn write_repository(folder: &Path, case: &Case) -> PathBuf {
    let name = case.key("directory").expect("each case names its model");
    let repository = folder.join(name);
    let model = repository.join(name);
    fs::create_dir_all(&model).unwrap();
    if !case.text.trim().is_empty() {
        fs::write(model.join(case.key("config").unwrap_or("config.pbtxt")), &case.text).unwrap();
    }
    for file in case.key("files").unwrap_or("1/model.onnx").split_whitespace().filter(|file| *file != "none") {
        let path = model.join(file);
        if file.ends_with('/') {
            fs::create_dir_all(path).unwrap();
            continue;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let contents = case.key("model").filter(|_| file.ends_with(".onnx")).map(onnx);
        fs::write(path, contents.unwrap_or_else(|| b"cat\ndog\n".to_vec())).unwrap();
    }
    for (_, also) in case.keys.iter().filter(|(key, _)| key == "also") {
        let (name, config) = also.split_once(' ').unwrap();
        fs::create_dir_all(repository.join(name).join("1")).unwrap();
        fs::write(repository.join(name).join("config.pbtxt"), config).unwrap();
    }
    repository
}

type Outcome = Result<Value, String>;

/// The output of `config show`, or its refusal.
fn shown(repository: &Path, case: &Case) -> Outcome {
    let has_more = case.key("also").is_some();
    let path = if has_more { repository.join(case.key("directory").unwrap()) } else { repository.to_owned() };
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command
        .args(["config", "show", "--format=json", "--log-warning=false", EMBEDDED])
        .arg(path)
        .args(flags(case))
        .env(BLIND.0, BLIND.1);
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(error.trim_end().strip_prefix("error: ").expect("one line for a person").to_owned()),
    }
}

fn flags(case: &Case) -> Vec<&str> {
    case.key("flags").unwrap_or_default().split_whitespace().collect()
}

/// The configuration that the server serves, without its own decisions; or its refusal in the log.
fn served(server: &Server, log: &str, name: &str) -> Outcome {
    let answer = http::get(server.http(), &format!("/v2/models/{name}/config")).unwrap();
    if answer.status == 200 {
        let mut config: Value = serde_json::from_slice(&answer.body).unwrap();
        let parameters = config["parameters"].as_object_mut().unwrap();
        parameters.retain(|key, _| !matches!(key.as_str(), "placement" | "served_engine" | "served_engine_version"));
        return Ok(config);
    }
    let beginnings = [format!("failed to load '{name}': "), format!("failed to poll model '{name}': ")];
    let line = log.lines().find_map(|line| beginnings.iter().find_map(|text| Some(line.split_once(text)?.1)));
    let line = line.unwrap_or_else(|| panic!("neither served nor refused: {name}\n{log}"));
    // As in JSON, a line is in quotes and those within are escaped.
    let text = line.strip_suffix('"').unwrap_or(line).replace("\\\"", "\"");
    Err(text.split(" (version ").next().unwrap().to_owned())
}

/// The served configuration in one line.
fn told(outcome: &Outcome) -> String {
    let config = match outcome {
        Ok(config) => config,
        Err(error) => return format!("error: {}", without_reason(error)),
    };
    let tensors = |key: &str| {
        let tensor = |tensor: &Value| {
            let datatype = tensor["data_type"].as_str().unwrap().trim_start_matches("TYPE_");
            let mut text = format!("{} {datatype} {}", tensor["name"].as_str().unwrap(), tensor["dims"]);
            if !tensor["reshape"].is_null() {
                text += &format!(" as {}", tensor["reshape"]["shape"]);
            }
            text
        };
        config[key].as_array().into_iter().flatten().map(tensor).collect::<Vec<_>>().join(", ")
    };
    let group = |group: &Value| format!("{} {}", group["count"], group["kind"].as_str().unwrap());
    let groups = config["instance_group"].as_array().into_iter().flatten().map(group).collect::<Vec<_>>().join(", ");
    let schedulers = ["dynamic_batching", "sequence_batching", "ensemble_scheduling"];
    let scheduler = schedulers.into_iter().find(|name| !config[*name].is_null()).unwrap_or("no scheduler");
    let preferred = &config["dynamic_batching"]["preferred_batch_size"];
    let preferred = if preferred.is_null() { String::new() } else { format!(" {preferred}") };
    let versions = config["version_policy"].as_object().unwrap().keys().next().cloned().unwrap_or_default();
    format!(
        "{} {}: {} > {}; max_batch_size {}; {scheduler}{preferred}; {groups}; versions {versions}",
        config["platform"],
        config["backend"],
        tensors("input"),
        tensors("output"),
        config["max_batch_size"]
    )
}

/// Removes the reason for having no GPU, which differs between machines.
fn without_reason(error: &str) -> String {
    let parts = error.split_once(NO_GPUS).and_then(|(before, rest)| Some((before, rest.split_once("; --gpu=off")?.1)));
    parts.map_or_else(|| error.to_owned(), |(before, after)| format!("{before}{NO_GPUS}…; --gpu=off{after}"))
}

const NO_GPUS: &str = "no GPUs are available: ";

/// A process with this variable sees no device.
const BLIND: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "");

#[test]
fn configurations_as_people_write_them_are_shown_as_they_are_served() {
    let folder = Folder::new("corpus");
    let files = texts_in("repositories");
    let all: Vec<Case> = files.iter().flat_map(|file| cases(file)).collect();
    let mut by_flags: BTreeMap<String, Vec<(&Case, PathBuf)>> = BTreeMap::new();
    for case in &all {
        let repository = write_repository(folder.path(), case);
        by_flags.entry(flags(case).join(" ")).or_default().push((case, repository));
    }
    let (mut outcomes, mut differing) = (BTreeMap::new(), Vec::new());
    for (flags, cases) in &by_flags {
        let paths: Vec<&str> = cases.iter().map(|(_, path)| path.to_str().unwrap()).collect();
        let more: Vec<&str> = flags.split_whitespace().chain(paths.iter().skip(1).copied()).collect();
        let always = [EMBEDDED, "--exit-on-error=false", "--strict-readiness=false"];
        let ports = Ports::free();
        let mut command = Server::command(Path::new(paths[0]), &[&more[..], &always].concat(), ports);
        command.env(BLIND.0, BLIND.1);
        let server = Server::start(command, ports);
        let log = server.log();
        let mut failed = 0;
        for (case, repository) in cases {
            let name = case.key("directory").unwrap();
            let (served, shown) = (served(&server, &log, name), shown(repository, case));
            failed += usize::from(served.is_err());
            if served != shown {
                differing.push(format!("{name} {}\nserved {served:?}\nshown  {shown:?}", case.title));
            }
            assert!(outcomes.insert(name.to_owned(), told(&served)).is_none(), "{name} is there twice");
        }
        let also =
            cases.iter().map(|(case, _)| case.keys.iter().filter(|(key, _)| key == "also").count()).sum::<usize>();
        let want = format!("ready, but {failed} of {} models failed", cases.len() + also);
        assert!(failed == 0 || log.contains(&want), "{want:?} is not in\n{log}");
    }
    let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
    for file in &files {
        let mut written = String::new();
        for case in cases(file) {
            let got = &outcomes[case.key("directory").unwrap()];
            written.push_str(&case.write(got));
            if *got != case.want && !is_update {
                differing.push(format!("{}: {}\nwant {}\ngot  {got}", file.display(), case.title, case.want));
            }
        }
        if is_update {
            fs::write(file, written.trim_end().to_owned() + "\n").unwrap();
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n\n"));
    assert!(all.len() >= 60, "the corpus has {} configurations", all.len());
}

//! Proposes a steps.json from the model.py of a model, for `deuteron steps suggest`. Python prints the syntax tree of the file, and runs
//! nothing of it; `steps::suggest` does the rest.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::model::parse::text::{ConfigText, Notation};
use crate::model::platform::{PYTHON_FILENAME, STEPS_FILENAME};
use crate::process::python::archive::Archives;
use crate::process::python::environment::{Interpreter, InterpreterSearch};
use crate::settings::Settings;
use crate::steps::limits::{SUGGEST_DEPTH_MAX, SUGGEST_NODES_MAX, SUGGEST_SOURCE_SIZE_MAX, SUGGEST_TREE_SIZE_MAX};
use crate::steps::suggest::{SuggestModel, SuggestOther, SuggestTensor, Suggestion, TREE_SCRIPT, suggest};
use crate::tensor::Datatype;
use crate::wire::proto::inference::{DataType, ModelConfig, ModelTensorReshape};

/// Writes the steps.json of a proposal into the directory of a version.
///
/// # Errors
/// If there is such a file already, or it cannot be written.
pub fn write(suggestion: &Suggestion, version: &Path) -> Result<(), String> {
    let file = version.join(STEPS_FILENAME);
    let made = File::options().write(true).create_new(true).open(&file);
    let written = made.and_then(|mut made| made.write_all(suggestion.steps_json().as_bytes()));
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => format!("{} is there already and is not overwritten", file.display()),
        _ => format!("{}: {error}", file.display()),
    })
}

/// Returns the proposal, and the directory of the version whose model.py it is for.
///
/// # Errors
/// If the path is no model's, a file cannot be read, or its model.py cannot be parsed.
pub fn proposed(settings: &Settings, path: &Path) -> Result<(Suggestion, PathBuf), Error> {
    let cannot = |path: &Path, error: &dyn std::fmt::Display| Error::invalid(format!("{}: {error}", path.display()));
    let directory = fs::canonicalize(path).map_err(|error| cannot(path, &error))?;
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let config = config_of(&directory)?;
    let version = newest_version(&directory)?;
    let version_name = version.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let filename = match config.default_model_filename.as_str() {
        "" => PYTHON_FILENAME,
        other => other,
    };
    let file = version.join(filename);
    let source = read_bounded(&file, SUGGEST_SOURCE_SIZE_MAX).map_err(|error| cannot(&file, &error))?;
    let parameter = |name: &str| config.parameters.get(name).map(|parameter| parameter.string_value.as_str());
    let interpreter = InterpreterSearch {
        execution_environment: parameter("EXECUTION_ENV_PATH"),
        model_directory: &directory,
        configured: settings.backend_config.python.interpreter.as_deref(),
        variable: &|name| std::env::var_os(name),
        archives: &Archives::new(std::env::temp_dir()),
    };
    let tree = tree(&interpreter.find()?, source).map_err(|why| cannot(&file, &why))?;
    let read_file = |name: &str, size_max: usize| {
        let found = [&version, &directory].into_iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        let path = found.ok_or_else(|| "no such file".to_owned())?;
        read_bounded(&path, size_max)
    };
    let tensors = tensors(&config)?;
    let find_other = |name: &str| other(&directory, name);
    let model = SuggestModel {
        name: &name,
        version: &version_name,
        rows_max: u32::try_from(config.max_batch_size).unwrap_or(0),
        inputs: tensors.0,
        outputs: tensors.1,
        parameters: config.parameters.iter().map(|(name, value)| (name.clone(), value.string_value.clone())).collect(),
        read_file: &read_file,
        find_other: &find_other,
    };
    Ok((suggest(&tree, &model)?, version))
}

/// Another model of the repository, by the configuration in its directory.
fn other(directory: &Path, name: &str) -> Result<SuggestOther, String> {
    let is_plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    let beside = directory.parent().filter(|_| is_plain).map(|parent| parent.join(name));
    let missing = || format!("there is no model '{name}' beside this one, whose config.pbtxt has the shapes");
    let beside = beside.filter(|path| path.is_dir()).ok_or_else(missing)?;
    let of_model = |error: Error| format!("the model '{name}' is called: {}", error.text());
    let config = config_of(&beside).map_err(of_model)?;
    let (inputs, outputs) = tensors(&config).map_err(of_model)?;
    Ok(SuggestOther { rows_max: u32::try_from(config.max_batch_size).unwrap_or(0), inputs, outputs })
}

/// The configuration as it is written: to complete it, the model would have to run.
fn config_of(directory: &Path) -> Result<ModelConfig, Error> {
    for notation in Notation::ALL {
        let path = directory.join(notation.filename());
        let Ok(text) = fs::read(&path) else { continue };
        let decoded = ConfigText::decode(notation, &text).map_err(Error::from)?;
        let config: Result<ModelConfig, _> = decoded.message.transcode_to();
        return config.map_err(|error| Error::invalid(format!("{}: {error}", path.display())));
    }
    let (directory, file) = (directory.display(), Notation::Text.filename());
    Err(Error::invalid(format!("{directory} has no {file}: the path must be the directory of a model")))
}

fn newest_version(directory: &Path) -> Result<PathBuf, Error> {
    let entries =
        fs::read_dir(directory).map_err(|error| Error::invalid(format!("{}: {error}", directory.display())))?;
    let versions = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let newest = versions.max();
    let newest = newest.ok_or_else(|| Error::invalid(format!("{} has no version directory", directory.display())))?;
    Ok(directory.join(newest.to_string()))
}

fn read_bounded(path: &Path, size_max: usize) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let bound = u64::try_from(size_max).unwrap_or(u64::MAX).saturating_add(1);
    file.take(bound).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() > size_max {
        true => Err(format!("the file has more than {size_max} bytes")),
        false => Ok(bytes),
    }
}

/// Has Python print the syntax tree of a source.
fn tree(interpreter: &Interpreter, source: Vec<u8>) -> Result<String, String> {
    let cannot = |error: io::Error| format!("'{}' cannot print its syntax tree: {error}", interpreter.path.display());
    // -I and -S keep out all modules but those of the standard library.
    let mut child = Command::new(&interpreter.path)
        .args(["-I", "-S", "-W", "ignore", "-c", TREE_SCRIPT])
        .args([SUGGEST_NODES_MAX, SUGGEST_DEPTH_MAX].map(|limit| limit.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    let writer = child.stdin.take().map(|mut input| std::thread::spawn(move || input.write_all(&source)));
    let mut tree = String::new();
    let bound = SUGGEST_TREE_SIZE_MAX as u64 + 1;
    let read = child.stdout.take().map(|output| output.take(bound).read_to_string(&mut tree));
    let output = child.wait_with_output().map_err(cannot)?;
    // A program that does not read all of the source has its reason on standard error.
    let _ = writer.map(std::thread::JoinHandle::join);
    read.transpose().map_err(cannot)?;
    match output.status.success() {
        true => Ok(tree),
        false => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(text.lines().last().map_or_else(|| output.status.to_string(), str::to_owned))
        }
    }
}

/// The inputs and outputs.
fn tensors(config: &ModelConfig) -> Result<(Vec<SuggestTensor>, Vec<SuggestTensor>), Error> {
    let tensor = |name: &str, datatype: i32, dims: &[i64], reshape: &Option<ModelTensorReshape>, is_optional| {
        let text = DataType::try_from(datatype).map_or("TYPE_INVALID", |datatype| datatype.as_str_name());
        let text = if text == "TYPE_STRING" { "BYTES" } else { text.strip_prefix("TYPE_").unwrap_or(text) };
        let datatype = Datatype::from_name(text)
            .ok_or_else(|| Error::invalid(format!("'{name}' has no data_type in the configuration")))?;
        let reshape = reshape.as_ref().map(|reshape| reshape.shape.clone());
        Ok(SuggestTensor { name: name.to_owned(), datatype, dims: dims.to_vec(), reshape, is_optional })
    };
    let inputs = config
        .input
        .iter()
        .map(|input| tensor(&input.name, input.data_type, &input.dims, &input.reshape, input.optional));
    let outputs =
        config.output.iter().map(|output| tensor(&output.name, output.data_type, &output.dims, &output.reshape, false));
    let tensors = (inputs.collect::<Result<Vec<_>, Error>>()?, outputs.collect::<Result<Vec<_>, Error>>()?);
    match tensors.0.is_empty() || tensors.1.is_empty() {
        true => Err(Error::invalid(
            "the configuration has no inputs or no outputs, which steps need: model.py is not asked for them",
        )),
        false => Ok(tensors),
    }
}

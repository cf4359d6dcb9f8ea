//! `deuteron ask`: sends one request to a model of a server and prints the answer. A file for the only input goes as it is, which
//! suits images and raw tensors; everything else goes as JSON to `/generate`.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::client::http_client::{HttpAnswer, HttpClient};
use crate::client::question::{GivenInput, ModelQuestion};
use crate::loadgen::tls_socket::CommandTls;
use crate::wire::json::{Document, writer};

/// Bytes of a file that are sent: beyond the largest body of most servers.
const ASK_FILE_SIZE_MAX: u64 = 1 << 30;

/// Parts of the answers to plain text at a port with TLS: of this server, and of nginx.
const PLAIN_REFUSALS: [&str; 2] = ["this port has TLS", "sent to HTTPS port"];

/// Asks, and prints the answer on standard output. Returns the exit code for `main`: 1 unless the model answered.
pub fn run(question: &ModelQuestion) -> ExitCode {
    let HttpAnswer { status, body, .. } = match ask(question) {
        Ok(answer) => answer,
        Err(why) => {
            let _ = writeln!(io::stderr(), "{why}");
            return ExitCode::FAILURE;
        }
    };
    let is_good = status == 200;
    let text = String::from_utf8_lossy(&body);
    let asked = question.model.as_deref().unwrap_or(&question.server.authority);
    let line = if is_good { text.into_owned() } else { format!("{asked} answers {status}: {text}") };
    let needs_tls = status == 400 && !question.server.has_tls && PLAIN_REFUSALS.iter().any(|part| line.contains(part));
    let line =
        if needs_tls { format!("{}\nuse --url=https://{}", line.trim_end(), question.server.authority) } else { line };
    // The caller may have closed the output, which changes nothing.
    let _ = if is_good {
        writeln!(io::stdout(), "{}", line.trim_end())
    } else {
        writeln!(io::stderr(), "{}", line.trim_end())
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the answer; the error is a line for a person.
fn ask(question: &ModelQuestion) -> Result<HttpAnswer, String> {
    let authority = &question.server.authority;
    let cannot = |error: io::Error| format!("{authority} cannot be asked: {error}");
    let tls = if question.server.has_tls { CommandTls::open(&question.tls, authority)? } else { CommandTls::default() };
    let mut client = HttpClient::connect(authority, &tls).map_err(cannot)?;
    let Some(model) = &question.model else { return list(&mut client, &question.headers).map_err(cannot) };
    let post = |client: &mut HttpClient, path: &str, kind: &str, body: &[u8]| {
        client.post(path, kind, &question.headers, body).map_err(cannot)
    };
    if let [GivenInput { name: None, value }] = question.inputs.as_slice() {
        if let Some(file) = read_file(value)? {
            let fields = [&question.headers[..], &["Accept: application/json".to_owned()]].concat();
            let path = format!("/v2/models/{model}/infer");
            return client.post(&path, "application/octet-stream", &fields, &file).map_err(cannot);
        }
        let described = client.get(&format!("/v2/models/{model}"), &question.headers).map_err(cannot)?;
        if described.status != 200 {
            return Ok(described);
        }
        let config = client.get(&format!("/v2/models/{model}/config"), &question.headers).map_err(cannot)?;
        let name = only_input(model, &described.body, &config.body)?;
        let body = generate_body(&[(name.as_str(), value.as_str())]);
        return post(&mut client, &format!("/v2/models/{model}/generate"), "application/json", &body);
    }
    let mut values = Vec::new();
    for input in &question.inputs {
        let name = input.name.as_deref().unwrap_or_default();
        let value = match read_file(&input.value)? {
            None => input.value.clone(),
            Some(file) => String::from_utf8(file).map_err(|_| {
                format!("'{}' is not text: only a model's only input takes any bytes, without its name", input.value)
            })?,
        };
        values.push((name, value));
    }
    let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    post(&mut client, &format!("/v2/models/{model}/generate"), "application/json", &generate_body(&values))
}

/// Returns the names of the models that serve, a line each, instead of the body of an answer: from the list that KServe's servers
/// have, or the index of Triton's.
fn list(client: &mut HttpClient, headers: &[String]) -> io::Result<HttpAnswer> {
    let listed = client.get("/v2/models", headers)?;
    let listed = match listed.status {
        404 | 405 => client.post("/v2/repository/index", "application/json", headers, br#"{"ready":true}"#)?,
        _ => listed,
    };
    let body = if listed.status == 200 { model_names(&listed.body) } else { None };
    Ok(body.map_or(listed.clone(), |body| HttpAnswer { json_size: body.len(), body, ..listed }))
}

/// The names in a list or an index of models, each once; `None` for another document.
fn model_names(listed: &[u8]) -> Option<Vec<u8>> {
    let document = Document::parse(listed, &[]).ok()?;
    let models = document.root().get("models").unwrap_or_else(|| document.root());
    let names = models.elements().filter_map(|model| model.as_str().or_else(|| model.get("name")?.as_str()));
    // A terminal must not be controlled by a name.
    let mut names: Vec<_> = names.filter(|name| !name.chars().any(char::is_control)).collect();
    names.sort_unstable();
    names.dedup();
    Some(names.join("\n").into_bytes())
}

/// Returns the name of a model's only input that must be given, from its metadata and its configuration.
fn only_input(model: &str, metadata: &[u8], config: &[u8]) -> Result<String, String> {
    let document = Document::parse(metadata, &[]).map_err(|_| format!("the metadata of {model} is no JSON"))?;
    // A server of another kind may not have it.
    let config = Document::parse(config, &[]).ok();
    let configured = config.iter().filter_map(|config| config.root().get("input")).flat_map(|inputs| inputs.elements());
    let optional: Vec<_> = configured
        .filter(|input| input.get("optional").and_then(|optional| optional.as_bool()) == Some(true))
        .filter_map(|input| input.get("name")?.as_str())
        .collect();
    let inputs = document.root().get("inputs");
    let inputs = inputs.iter().flat_map(|inputs| inputs.elements());
    let names = inputs.filter_map(|input| input.get("name")?.as_str());
    let names: Vec<_> = names.filter(|name| !optional.contains(name)).collect();
    match names.as_slice() {
        [name] => Ok((*name).to_owned()),
        names => {
            let names = names.join(", ");
            Err(format!("the inputs of {model} are {names}: give their names, as in --input NAME=VALUE"))
        }
    }
}

/// The contents of a file; `None` if there is no file of that name: the value is a text then.
fn read_file(path: &str) -> Result<Option<Vec<u8>>, String> {
    let Ok(known) = std::fs::metadata(path) else { return Ok(None) };
    if !known.is_file() {
        return Ok(None);
    }
    if known.len() > ASK_FILE_SIZE_MAX {
        return Err(format!("'{path}' has {} bytes, more than the {ASK_FILE_SIZE_MAX} that are sent", known.len()));
    }
    std::fs::read(path).map(Some).map_err(|error| format!("cannot read '{path}': {error}"))
}

/// The body of a request to `/generate`: a value is JSON if it reads as such, otherwise a text.
fn generate_body(values: &[(&str, &str)]) -> Vec<u8> {
    let mut body = vec![b'{'];
    for (index, (name, value)) in values.iter().enumerate() {
        writer::comma(index, &mut body);
        writer::string(name, &mut body);
        body.push(b':');
        let is_json = Document::parse(value.as_bytes(), &[]).is_ok_and(|document| document.validate().is_ok());
        if is_json { body.extend_from_slice(value.as_bytes()) } else { writer::string(value, &mut body) }
    }
    body.push(b'}');
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_json_if_it_reads_as_such_and_otherwise_a_text() {
        let check = |value: &str, want: &str| {
            assert_eq!(String::from_utf8(generate_body(&[("x", value)])).unwrap(), format!("{{\"x\":{want}}}"));
        };
        check("[1, 2.5]", "[1, 2.5]");
        check("3", "3");
        check("\"3\"", "\"3\"");
        check("a \"text\"", "\"a \\\"text\\\"\"");
        check("[1, 2", "\"[1, 2\"");
        check("", "\"\"");
    }

    #[test]
    fn names_come_from_the_list_of_a_server_or_from_the_index_of_triton() {
        let check = |listed: &str, want: Option<&str>| {
            let names = model_names(listed.as_bytes()).map(|names| String::from_utf8(names).unwrap());
            assert_eq!(names.as_deref(), want, "{listed}");
        };
        check(r#"{"models":["b","a"]}"#, Some("a\nb"));
        check(r#"[{"name":"a","version":"1"},{"name":"a","version":"2"},{"name":"c"}]"#, Some("a\nc"));
        check(r#"{"models":[]}"#, Some(""));
        check(r#"{"models":["a\u001b[2J","b"]}"#, Some("b"));
        check("<html>", None);
    }
}

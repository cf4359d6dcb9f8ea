//! `deuteron ask`: one request from the command line, against a server with models of one and of two inputs.

use std::fs;
use std::process::{Command, Output};

use crate::support::folder::Folder;
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::repository;
use crate::support::server::Server;

const TEXT: &str = "backend: \"identity\" input { name: \"text\" data_type: TYPE_STRING dims: 1 } \
                    output { name: \"same\" data_type: TYPE_STRING dims: 1 }";

fn ask(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.arg("ask").args(arguments).args(["--url", url]).output().unwrap()
}

/// The words that bash offers for the last word of a line, or for that before a flag which follows it.
fn completed(line: &str) -> String {
    let script = r#"
        source <("$PROGRAM" completions bash)
        deuteron() { "$PROGRAM" "$@"; }
        COMP_LINE=$1; COMP_WORDS=($1); COMP_CWORD=$2
        _deuteron_with_models deuteron "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        echo "${COMPREPLY[*]}""#;
    let words = line.split_whitespace().count();
    let at = if line.contains("ask te") {
        2
    } else if line.ends_with(' ') {
        words
    } else {
        words - 1
    };
    let mut command = Command::new("bash");
    command.env("PROGRAM", env!("CARGO_BIN_EXE_deuteron")).args(["-c", script, "bash", line, &at.to_string()]);
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// The names come from a server, which may be anyone's.
#[test]
fn a_name_with_the_shells_own_signs_is_no_command() {
    let folder = Folder::new("ask-shell");
    let script = r#"
        source <("$PROGRAM" completions bash)
        deuteron() { printf '%s\n' 'x$(touch made)' 'x;touch made' plain; }
        COMP_LINE="deuteron ask x"; COMP_WORDS=(deuteron ask x); COMP_CWORD=2
        _deuteron_with_models deuteron x ask
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut command = Command::new("bash");
    command.env("PROGRAM", env!("CARGO_BIN_EXE_deuteron")).args(["-c", script]).current_dir(folder.path());
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\\$\\(touch\\ made\\)\nx\\;touch\\ made\n");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was run");
}

#[test]
fn a_model_is_asked_with_a_text_json_a_file_and_by_the_names_of_its_inputs() {
    let folder = Folder::new("ask");
    repository::add(folder.path(), "text", TEXT, None);
    let sum = Onnx::default().node("Add", &["a", "b"], &["c"], &[]);
    let sum = sum.input("a", FLOAT, &[2]).input("b", FLOAT, &[2]).output("c", FLOAT, &[2]).into_bytes();
    repository::add(folder.path(), "sum", "", Some(&sum));
    let file = folder.path().join("question.txt");
    fs::write(&file, "from a file").unwrap();
    let file = file.to_str().unwrap();
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let url = format!("http://{}", server.http());
    let answered = |arguments: &[&str], want: &str| {
        let output = ask(&url, arguments);
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains(want), "{arguments:?}: {out}{error}");
    };
    answered(&["text", "--input", "a \"text\""], r#""same":"a \"text\"""#);
    answered(&["text", "-i", "text=by name"], r#""same":"by name""#);
    answered(&["text", "--input", file], "from a file");
    answered(&["text", "--input", &format!("text={file}")], "from a file");
    answered(&["sum", "-i", "a=[5, 6]", "-i", "b=[1, 2.5]"], r#""c":[6.0,8.5]"#);
    let refused = |url: &str, arguments: &[&str], code: i32, want: &str| {
        let output = ask(url, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && error.contains(want), "{arguments:?}: {error}");
    };
    let listed = ask(&url, &["--list"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "sum\ntext\n");
    for (line, want) in [
        (format!("deuteron ask te --url={url}"), "text"),
        (format!("deuteron bench -u {url} -m "), "sum text"),
        (format!("deuteron bench -u {url} --model-name s"), "sum"),
    ] {
        assert_eq!(completed(&line), want, "{line}");
    }
    refused(&url, &["sum", "--input", "[1]"], 1, "the inputs of sum are a, b: give their names");
    refused(&url, &["absent", "--input", "x"], 1, "absent answers 404");
    refused(&url, &["text"], 2, "an input is missing, as in `deuteron ask text --input 'a text'`");
    refused(&url, &["sum", "-i", "[1]", "-i", "b=[2]"], 2, "several inputs need their names");
    refused(&url, &["text", "-i", "x", "-H", "no field"], 2, "--header=no field: expected NAME: VALUE");
    refused("http://127.0.0.1:1", &["text", "-i", "x"], 1, "127.0.0.1:1 cannot be asked");
    refused("grpc://localhost", &["text", "-i", "x"], 2, "'grpc' is not supported");
}

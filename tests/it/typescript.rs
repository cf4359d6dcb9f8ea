//! A TypeScript client with types that openapi-typescript generates from our OpenAPI documents, checked by `tsc --strict`,
//! runs a model.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::protocol_page::server;
use crate::support::folder::{Folder, target};
use crate::support::{http, skipped::skip};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openapi/typescript")
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The folder with the packages of the lock file, installed once. `None` without npm or the packages.
fn packages() -> Option<PathBuf> {
    let folder = target().join("openapi-typescript");
    fs::create_dir_all(&folder).unwrap();
    let lock = fs::File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let wanted = fs::read(sources().join("package-lock.json")).unwrap();
    let is_there = fs::read(folder.join("installed")).is_ok_and(|have| have == wanted);
    if !is_there {
        for name in ["package.json", "package-lock.json"] {
            fs::copy(sources().join(name), folder.join(name)).unwrap();
        }
        // Without scripts of packages, which are not needed.
        let flags = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"];
        if !succeeds(Command::new("npm").args(flags).current_dir(&folder)) {
            skip("npm cannot install the packages of tests/openapi/typescript");
            return None;
        }
        fs::write(folder.join("installed"), wanted).unwrap();
    }
    Some(folder)
}

fn node(arguments: &[&str], folder: &Path) -> Output {
    Command::new("node").args(arguments).current_dir(folder).output().expect("the packages were installed by it")
}

#[test]
fn a_client_with_generated_types_is_checked_and_runs_a_model() {
    let Some(packages) = packages() else { return };
    let (server, folder) = (server(), Folder::new("typescript"));
    symlink(packages.join("node_modules"), folder.path().join("node_modules")).unwrap();
    for name in ["client.ts", "package.json"] {
        fs::copy(sources().join(name), folder.path().join(name)).unwrap();
    }
    let runs = |arguments: &[&str]| {
        let output = node(arguments, folder.path());
        let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    for (name, path) in [("server", "/v2/docs/openapi.json"), ("model", "/v2/models/digits/docs/openapi.json")] {
        let document = format!("{name}.json");
        fs::write(folder.path().join(&document), http::get(server.http(), path).unwrap().body).unwrap();
        let types = format!("{name}.d.ts");
        runs(&["node_modules/openapi-typescript/bin/cli.js", &document, "--output", &types]);
    }
    // Without errors of types only, the program is written.
    let strict = ["--strict", "--noUncheckedIndexedAccess", "--noEmitOnError"];
    let form = ["--target", "es2022", "--module", "nodenext", "--outDir", ".", "client.ts"];
    runs(&[&["node_modules/typescript/bin/tsc"], &strict[..], &form].concat());
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digits/request.json");
    let request = fs::read_to_string(example).unwrap();
    let said = runs(&["client.js", &format!("http://{}", server.http()), &request]);
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 7, "{said}");
    assert!(!said.contains("WRONG"), "{said}");
}

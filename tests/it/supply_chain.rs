//! Contents of the program: licences, duplicates and sources by the lists of `deny.toml`, and the list of packages that
//! the program carries for scanners.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::Command;

use crate::support::folder::Folder;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The quoted strings of a list of `deny.toml`.
fn list(name: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(format!("{ROOT}/deny.toml")).unwrap();
    let (_, rest) = text.split_once(&format!("\n{name} = [")).unwrap();
    let (body, _) = rest.split_once("\n]").unwrap();
    let lines = body.lines().map(str::trim).filter(|line| line.starts_with('"'));
    let list: BTreeSet<_> = lines.map(|line| line.trim_matches([',', '"']).to_owned()).collect();
    assert!(!list.is_empty(), "{name}");
    list
}

/// The packages that build the program or are linked into it, `name@version`, with their licences.
fn packages() -> BTreeMap<String, String> {
    // The features of a release.
    let form = ["--edges=normal,build", "--prefix=none", "--format={p}|{l}|"];
    let tree = [&["tree", "--locked", "--package=deuteron", "--features=stores"], &form[..]].concat();
    let told = |more: &[&str]| Command::new("cargo").args(&tree).args(more).current_dir(ROOT).output().unwrap();
    // The feature's dependencies may not be here yet.
    let offline = told(&["--offline"]);
    let output = if offline.status.success() { offline } else { told(&[]) };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let package = |line: &str| {
        let mut parts = line.split('|');
        let (package, licence) = (parts.next().unwrap(), parts.next().unwrap());
        let mut words = package.split(' ');
        let (name, version) = (words.next().unwrap(), words.next().unwrap().trim_start_matches('v'));
        (format!("{name}@{version}"), licence.to_owned())
    };
    text.lines().map(package).collect()
}

/// Returns true if a licence expression (SPDX, annex D) can be met with the allowed licences.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = any(&tokens, allowed);
    met && rest.is_empty()
}

fn any<'a>(tokens: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = all(tokens, allowed);
    while let ["OR", after @ ..] = rest {
        let (other, after) = all(after, allowed);
        (met, rest) = (met | other, after);
    }
    (met, rest)
}

fn all<'a>(tokens: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = one(tokens, allowed);
    while let ["AND", after @ ..] = rest {
        let (other, after) = one(after, allowed);
        (met, rest) = (met & other, after);
    }
    (met, rest)
}

fn one<'a>(tokens: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    match tokens {
        ["(", inner @ ..] => match any(inner, allowed) {
            (met, [")", rest @ ..]) => (met, rest),
            (_, rest) => (false, rest),
        },
        [licence, "WITH", exception, rest @ ..] => (allowed.contains(&format!("{licence} WITH {exception}")), rest),
        // Or any later version of the licence.
        [licence, rest @ ..] => (allowed.contains(licence.trim_end_matches('+')), rest),
        [] => (false, tokens),
    }
}

#[test]
fn every_package_has_a_licence_that_is_allowed_and_no_licence_is_allowed_in_vain() {
    let allowed = list("allow");
    for (expression, want) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only/MIT", true),
        ("GPL-3.0-only AND MIT", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND OpenSSL", false),
        ("MPL-2.0+", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT WITH LLVM-exception", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), want, "{expression}");
    }
    let packages = packages();
    let refused: Vec<_> = packages.iter().filter(|(_, licence)| !is_allowed(licence, &allowed)).collect();
    assert!(refused.is_empty(), "licences that deny.toml does not allow: {refused:?}");
    let vain = allowed.iter().filter(|licence| !packages.values().any(|expression| expression.contains(*licence)));
    assert_eq!(vain.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn no_package_is_there_in_two_versions_but_those_that_are_listed() {
    let packages: Vec<_> = packages().into_keys().collect();
    let name = |package: &str| package.split('@').next().unwrap().to_owned();
    let is_twice = |package: &&String| packages.iter().filter(|other| name(other) == name(package)).count() > 1;
    let twice: BTreeSet<_> = packages.iter().filter(is_twice).map(|package| name(package)).collect();
    let listed = list("skip");
    assert!(listed.iter().all(|package| packages.contains(package)), "listed and not there: {listed:?}");
    assert_eq!(twice, listed.iter().map(|package| name(package)).collect());
}

#[test]
fn every_package_comes_from_the_registry_with_its_checksum() {
    let lock = std::fs::read_to_string(format!("{ROOT}/Cargo.lock")).unwrap();
    let packages = lock.split("[[package]]").skip(1);
    let has = |package: &str, start: &str| package.lines().any(|line| line.starts_with(start));
    let registry = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let other = packages.filter(|package| !has(package, registry) || !has(package, "checksum = \""));
    let other: BTreeSet<_> = other.map(|package| package.lines().nth(1).unwrap().to_owned()).collect();
    let crates = std::fs::read_dir(format!("{ROOT}/crates")).unwrap().map(|entry| entry.unwrap().file_name());
    let ours = crates.map(|name| name.into_string().unwrap()).chain(["deuteron".to_owned()]);
    assert_eq!(other, ours.map(|name| format!("name = \"{name}\"")).collect());
}

#[test]
fn no_package_needs_a_newer_rust_than_the_crate_says() {
    // Dependencies for other systems are not fetched for a test.
    let platform = format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = ["metadata", "--format-version=1", "--locked", "--offline", &platform];
    let output = Command::new("cargo").args(metadata).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let least = |package: &serde_json::Value| {
        let text = package["rust_version"].as_str().unwrap_or("1.0");
        let number = |part: &str| part.parse::<u32>().unwrap();
        text.split('.').take(2).map(number).collect::<Vec<_>>()
    };
    let packages = metadata["packages"].as_array().unwrap();
    let ours = packages.iter().find(|package| package["name"] == "deuteron").map(least).unwrap();
    // Packages that only tests build are in the list too; they may need an older Rust.
    let newer = packages.iter().filter(|package| least(package) > ours);
    assert_eq!(newer.map(|package| package["name"].as_str().unwrap()).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn the_changelog_begins_with_this_version() {
    let text = std::fs::read_to_string(format!("{ROOT}/CHANGELOG.md")).unwrap();
    let first = text.lines().find_map(|line| line.strip_prefix("## "));
    assert_eq!(first, Some(env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_program_carries_the_list_that_scanners_of_binaries_read() {
    let folder = Folder::new("dependencies");
    let section = folder.path().join("section");
    let program = env!("CARGO_BIN_EXE_deuteron");
    let copy = Command::new("objcopy").args(["-O", "binary", "--only-section=.dep-v0", program]).arg(&section).status();
    assert!(copy.unwrap().success());
    let mut text = String::new();
    flate2::read::ZlibDecoder::new(&*std::fs::read(section).unwrap()).read_to_string(&mut text).unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let listed = |name: &str| {
        let package = list["packages"].as_array().unwrap().iter().find(|package| package["name"] == name).cloned();
        package.unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!((&listed("deuteron")["root"], &listed("deuteron")["source"]), (&true.into(), &"local".into()));
    assert_eq!((&listed("rustls")["source"], listed("rustls").get("kind")), (&"crates.io".into(), None));
    assert_eq!(listed("cc")["kind"], "build");
    assert!(!text.contains('/'), "no path of the machine that built it");
    let output = Command::new(program).arg("sbom").output().unwrap();
    let sbom: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&sbom["bomFormat"], &sbom["metadata"]["component"]["name"]), (&"CycloneDX".into(), &"deuteron".into()));
}

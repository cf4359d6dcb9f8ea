//! Dependencies of the program, as cargo lists them: for the section `.dep-v0` that scanners of binaries read (the
//! format of `cargo auditable`), and for `deuteron sbom`. Without cargo both are empty, with a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// A package in one version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
}

/// A package's details, from cargo.
struct Details {
    licence: String,
    is_local: bool,
    /// A procedural macro: it runs while others are compiled, and nothing of it is in the program.
    is_macro: bool,
}

type Packages = BTreeMap<Package, Details>;

/// Writes `dependencies.z` and `dependencies.tsv` into a folder.
pub fn write(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=Cargo.lock");
    let asked = ask("normal").and_then(|linked| Ok((linked, ask("normal,build")?)));
    let (linked, all) = asked.unwrap_or_else(|why| {
        println!("cargo::warning=the program will not say what it is made of: {why}");
        (Packages::new(), Packages::new())
    });
    let linked: BTreeSet<_> = linked.iter().filter(|(_, details)| !details.is_macro).map(|(key, _)| key).collect();
    fs::write(out.join("dependencies.z"), stored_zlib(json(&all, &linked).as_bytes())?)?;
    let mut table = String::new();
    for (package, details) in all.iter().filter(|(package, details)| linked.contains(package) && !details.is_local) {
        writeln!(table, "{}\t{}\t{}", package.name, package.version, details.licence)?;
    }
    Ok(fs::write(out.join("dependencies.tsv"), table)?)
}

/// All packages that edges of these kinds lead to, by the lock file, for the target and the features of this build.
#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by the environment alone")]
fn ask(edges: &str) -> Result<Packages, Box<dyn Error>> {
    let features = env::vars_os().filter_map(|(name, _)| {
        let name = name.into_string().ok()?.strip_prefix("CARGO_FEATURE_")?.to_lowercase();
        Some(name.replace('_', "-"))
    });
    let features: Vec<_> = features.filter(|name| name != "default").collect();
    let output = Command::new(env::var("CARGO")?)
        .args(["tree", "--locked", "--offline", "--prefix=none", "--format={p}|{l}|", "--edges", edges])
        .args(["--package", env!("CARGO_PKG_NAME")])
        .args(["--target", &env::var("TARGET")?, "--features", &features.join(",")])
        .current_dir(env::var("CARGO_MANIFEST_DIR")?)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ").into());
    }
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| read(line).ok_or_else(|| format!("cargo tree says '{line}'").into())).collect()
}

/// One line: `name v1.2.3 (proc-macro)|licence|`, with its source if that is not the registry.
fn read(line: &str) -> Option<(Package, Details)> {
    let (package, rest) = line.split_once('|')?;
    let (licence, _) = rest.split_once('|')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned());
    let (mut is_macro, mut is_local) = (false, false);
    for word in words {
        if word == "(proc-macro)" { is_macro = true } else { is_local = true }
    }
    Some((Package { name, version }, Details { licence: licence.to_owned(), is_local, is_macro }))
}

/// The list as `cargo auditable` has it. Names and versions need no escapes.
fn json(all: &Packages, linked: &BTreeSet<&Package>) -> String {
    let packages = all.iter().map(|(package, details)| {
        let (name, version) = (&package.name, &package.version);
        let source = if details.is_local { "local" } else { "crates.io" };
        let kind = if linked.contains(package) { "" } else { r#","kind":"build""# };
        let root = if name == env!("CARGO_PKG_NAME") { r#","root":true"# } else { "" };
        format!(r#"{{"name":"{name}","version":"{version}","source":"{source}"{kind}{root}}}"#)
    });
    format!(r#"{{"packages":[{}]}}"#, packages.collect::<Vec<_>>().join(","))
}

/// A zlib stream of blocks that are not compressed (RFC 1950, RFC 1951 §3.2.4): no crate is compiled for it.
fn stored_zlib(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut stream = vec![0x78, 0x01];
    let blocks = bytes.chunks(usize::from(u16::MAX));
    let last = blocks.len().saturating_sub(1);
    for (index, block) in blocks.enumerate() {
        let size = u16::try_from(block.len())?;
        stream.push(u8::from(index == last));
        stream.extend(size.to_le_bytes());
        stream.extend((!size).to_le_bytes());
        stream.extend(block);
    }
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    stream.extend(((high << 16) | low).to_be_bytes());
    Ok(stream)
}

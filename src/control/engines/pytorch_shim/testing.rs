//! The stand-in for torch that tests compile the shim against: `tests/pytorch/stand_in`, laid out as a wheel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::*;

/// The headers of torch that the shim names, and the one with torch's language standard.
const HEADERS: &str = include_str!("../../../../tests/pytorch/stand_in/headers.txt");

/// Returns an environment with the stand-in as its torch; compiled once for all tests of this
/// process.
pub fn stand_in() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let root = env::temp_dir().join(format!("deuteron-stand-in-{}", std::process::id()));
        let torch = root.join("lib/python3.12/site-packages/torch");
        write_headers(&torch.join("include"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch/stand_in/torch.cpp");
        link(&source, &torch.join("lib/libtorch_cpu.so"));
        let text = "#include <string>\nstd::string name(std::string text) { return text + text; }\n";
        fs::write(root.join("core.cpp"), text).unwrap();
        link(&root.join("core.cpp"), &torch.join("lib/libc10.so"));
        root
    })
}

/// Writes headers that all lead to that of the stand-in.
pub fn write_headers(include: &Path) {
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch/stand_in/torch.h");
    for name in HEADERS.lines() {
        write(&include.join(name), &format!("#include \"{}\"\n", stand_in.display()));
    }
    let version = "#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR 8\n#define TORCH_VERSION_PATCH 7\n";
    let version = format!("{version}#define TORCH_VERSION \"9.8.7\"\n");
    write(&include.join("torch/csrc/api/include/torch/version.h"), &version);
}

pub fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns the shim of the stand-in, in the folder that it is kept in.
pub fn stand_in_shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let config = PytorchConfig { cache: Some(stand_in().join("shims")), ..PytorchConfig::default() };
        found().shim(&config, &process_variable).unwrap()
    })
}

/// Returns the stand-in, as the search in its environment finds it.
pub fn found() -> FoundTorch {
    let search = LibrarySearch { virtual_environment: Some(stand_in().into()), ..LibrarySearch::nowhere(&TORCH) };
    FoundTorch::of(&candidates(&PytorchConfig::default(), &search)[0]).unwrap()
}

fn link(source: &Path, library: &Path) {
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let compiler = find_compiler(&process_variable).expect("a C++ compiler, which .ci/run installs");
    let mut command = Command::new(compiler);
    command.args(["-std=gnu++17", "-O1", "-fPIC", "-shared", "-o"]).arg(library).arg(source);
    assert!(command.status().unwrap().success(), "{} is compiled", source.display());
}

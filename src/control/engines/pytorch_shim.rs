//! The shim between this server and PyTorch: finds the torch of this machine with its headers, compiles the shim against it
//! once ([`crate::engines::pytorch::SHIM_SOURCE`]), and keeps the result in a folder that only this user can write. Called on
//! a load thread when the first PyTorch model is loaded, and by `deuteron doctor`.
//!
//! A kept shim is opened again, which runs code in it: a folder that others can write to, or a file that is not this
//! user's, is refused.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fmt};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, setpriority_process};
use sha2::{Digest, Sha256};

use crate::control::engines::library_search::{LibraryCandidate, LibrarySearch, SoughtLibrary};
use crate::engines::pytorch::SHIM_SOURCE;
use crate::log;
use crate::runtime::clock;
use crate::settings::PytorchConfig;

/// Time that a compiler may take for the shim between the server and PyTorch: it takes 10 to 25
/// seconds on an idle core, and a minute or two if everything else goes first.
const SHIM_COMPILE_MAX: Duration = Duration::from_secs(300);
/// Bytes of a compiler's notes that are searched for the first error: later ones follow from it.
const SHIM_NOTES_SIZE_MAX: u64 = 256 * 1024;
/// Bytes of a torch header that are searched for its version: those with it have a few kilobytes.
const TORCH_HEADER_SIZE_MAX: u64 = 1024 * 1024;
/// Bytes of torch's library of basic types (`libc10.so`) that are searched for the kind of its
/// texts: it has one or two megabytes.
const TORCH_LIBRARY_SIZE_MAX: u64 = 64 * 1024 * 1024;

/// The library of PyTorch that runs modules on the CPU.
pub static TORCH: SoughtLibrary = SoughtLibrary {
    file_names: &["libtorch_cpu.so"],
    variable: "LIBTORCH",
    wheel_folders: &["torch/lib"],
    unpacked_folders: &["torch/lib", "libtorch/lib"],
};

/// The flag that names the torch to use.
pub const LIBRARY_FLAG: &str = "--backend-config=pytorch,library";

/// A torch on this machine that a shim can be compiled against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTorch {
    /// Its library.
    pub library: PathBuf,
    /// The way to it, for the log.
    pub source: &'static str,
    /// Its version, as in its headers.
    pub version: String,
    include: PathBuf,
    /// The folder of its libraries.
    folder: PathBuf,
    /// The library that goes with it.
    core_library: PathBuf,
    /// True if its texts are those of C++11, as in all builds but older ones from PyPI.
    has_new_strings: bool,
    /// The language that its headers are written in.
    standard: &'static str,
}

/// Returns the candidates for PyTorch, in the order to try them: those of the flag, or else of the
/// search.
pub fn candidates(config: &PytorchConfig, search: &LibrarySearch) -> Vec<LibraryCandidate> {
    match &config.library {
        None => search.candidates(),
        Some(path) => {
            let named = TORCH.in_named(path).into_iter();
            named.map(|path| LibraryCandidate { path, source: LIBRARY_FLAG }).collect()
        }
    }
}

impl FoundTorch {
    /// Finds the parts that a shim needs beside a library of torch.
    ///
    /// # Errors
    /// The missing part, and the package to install.
    pub fn of(candidate: &LibraryCandidate) -> Result<Self, String> {
        let LibraryCandidate { path, source } = candidate;
        let library = path.canonicalize().map_err(|error| error.to_string())?;
        let folder = library.parent().unwrap_or(Path::new("/")).to_owned();
        // A link may lead out of the wheel, whose headers are beside the link (Debian).
        let beside = path.parent().unwrap_or(Path::new("/"));
        let places = [beside.join("../include"), folder.join("../include"), folder.join("../../include")];
        let include = places.into_iter().find(|place| place.join(MODULE_HEADER).is_file());
        let include = include.and_then(|include| include.canonicalize().ok());
        let include =
            include.ok_or("its headers are not there (Debian has them in libtorch-dev, PyPI's torch in itself)")?;
        let version = version(&include).ok_or("its headers do not say a version")?;
        let core_library = [beside, &folder].iter().find_map(|folder| core_library(folder));
        let core_library = core_library.ok_or("libc10.so is not beside it")?;
        let has_new_strings = has_text(&core_library, b"__cxx11").map_err(|error| error.to_string())?;
        let needs_20 = header(&include, "ATen/ATen.h").is_some_and(|text| text.contains("C++20"));
        let standard = if needs_20 { "-std=gnu++20" } else { "-std=gnu++17" };
        Ok(Self { library, source, version, include, folder, core_library, has_new_strings, standard })
    }

    /// Returns the shim for it: the kept one, or one that is compiled now and kept.
    ///
    /// # Errors
    /// The reason that it is missing: no compiler, no folder to keep it in, or the compiler's own
    /// words.
    pub fn shim(&self, config: &PytorchConfig, variable: Variable<'_>) -> Result<PathBuf, String> {
        if let Some(kept) = self.kept_shim(config, variable)? {
            return Ok(kept);
        }
        let folder = cache_folder(config, variable)?;
        let path = folder.join(self.shim_name());
        let compiler = find_compiler(variable).ok_or(NO_COMPILER)?;
        let (shown, version, torch) = (compiler.display(), &self.version, self.folder.display());
        log::info(&format!(
            "compiling the shim for PyTorch {version} in '{torch}' with '{shown}': once, for about 20 s; kept in '{}'",
            folder.display()
        ));
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let new = folder.join(format!(".new-{}-{number}", std::process::id()));
        let began = clock::now();
        let compiled = self.compile(&compiler, &new).and_then(|()| {
            fs::rename(&new, &path).map_err(|error| format!("the shim cannot be kept as '{}': {error}", path.display()))
        });
        if compiled.is_err() {
            // The file may not exist yet.
            let _ = fs::remove_file(&new);
        }
        compiled?;
        log::info(&format!("compiled the shim for PyTorch {version} in {:?}", clock::now().since(began)));
        Ok(path)
    }

    /// Returns the shim for it that was compiled earlier, if there is one.
    ///
    /// # Errors
    /// If there is no folder for it, or others could have written it.
    pub fn kept_shim(&self, config: &PytorchConfig, variable: Variable<'_>) -> Result<Option<PathBuf>, String> {
        let path = cache_folder(config, variable)?.join(self.shim_name());
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => check_own(&path, false).map(|()| Some(path)),
        }
    }

    /// Returns a name that changes with every part of the shim.
    fn shim_name(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(SHIM_SOURCE);
        self.arguments().iter().for_each(|argument| hash.update(argument.as_encoded_bytes()));
        // An upgrade in place may keep the version.
        if let Ok(known) = fs::metadata(&self.library) {
            hash.update(known.len().to_le_bytes());
            hash.update(known.mtime().to_le_bytes());
        }
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let version: String = self.version.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
        format!("torch-{version}-{hash}.so")
    }

    /// Returns the compiler's arguments, but for the file to write.
    fn arguments(&self) -> Vec<OsString> {
        let with = |option: &str, path: &Path| {
            let mut argument = OsString::from(option);
            argument.push(path);
            argument
        };
        let strings = format!("-D_GLIBCXX_USE_CXX11_ABI={}", u8::from(self.has_new_strings));
        let mut arguments: Vec<OsString> =
            ["-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w", self.standard, &strings].map(Into::into).into();
        arguments.push(with("-I", &self.include));
        arguments.push(with("-I", &self.include.join("torch/csrc/api/include")));
        arguments.extend(["-x", "c++", "-", "-x", "none"].map(Into::into));
        arguments.push(self.library.clone().into());
        arguments.push(self.core_library.clone().into());
        arguments.push(with("-Wl,-rpath,", &self.folder));
        arguments
    }

    fn compile(&self, compiler: &Path, output: &Path) -> Result<(), String> {
        let shown = compiler.display();
        let cannot_start = |error: io::Error| format!("the compiler '{shown}' cannot be started: {error}");
        let file = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from).map_err(io::Error::from);
        let (mut source, notes) = (file("shim").map_err(cannot_start)?, file("notes").map_err(cannot_start)?);
        source.write_all(SHIM_SOURCE.as_bytes()).and_then(|()| source.rewind()).map_err(cannot_start)?;
        let outs = notes.try_clone().and_then(|out| Ok((out, notes.try_clone()?))).map_err(cannot_start)?;
        let mut command = Command::new(compiler);
        command.args(self.arguments()).arg("-o").arg(output).env("LC_ALL", "C").process_group(0);
        let child = command.stdin(source).stdout(outs.0).stderr(outs.1).spawn().map_err(cannot_start)?;
        // The server's requests go first meanwhile.
        let _ = setpriority_process(Some(Pid::from_child(&child)), COMPILER_NICENESS);
        match wait(child, SHIM_COMPILE_MAX).map_err(cannot_start)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("'{shown}' cannot compile the shim ({status}): {}", first_error(&notes))),
            None => Err(format!("'{shown}' took longer than {SHIM_COMPILE_MAX:?} for the shim, and was ended")),
        }
    }
}

impl fmt::Display for FoundTorch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyTorch {} in '{}'", self.version, self.folder.display())
    }
}

/// Returns a variable of the process's environment that is not empty.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Returns a variable of this process.
pub fn process_variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The refusal of the native engine without a compiler.
pub const NO_COMPILER: &str = "there is no compiler for it: install g++ (Debian: g++), or name one by the variable CXX";
/// The header that tells the headers of torch from others.
const MODULE_HEADER: &str = "torch/csrc/jit/api/module.h";
/// The niceness of the compiler, of 19.
const COMPILER_NICENESS: i32 = 5;

/// Returns the compiler: that of `CXX`, or the first one in `PATH`.
pub fn find_compiler(variable: Variable<'_>) -> Option<PathBuf> {
    let path = variable("PATH").unwrap_or_default();
    let in_path = |name: &OsStr| {
        let folders = env::split_paths(&path).filter(|folder| folder.is_absolute());
        folders.map(|folder| folder.join(name)).find(|file| file.is_file())
    };
    if let Some(named) = variable("CXX") {
        let file = PathBuf::from(&named);
        return if file.is_absolute() { Some(file).filter(|file| file.is_file()) } else { in_path(&named) };
    }
    ["c++", "g++", "clang++"].iter().find_map(|name| in_path(OsStr::new(name)))
}

/// Returns the folder that shims are kept in, which is made if need be: the flag's, or that of this
/// user's caches.
///
/// # Errors
/// If there is no such folder, it cannot be made, or others could write to it.
pub fn cache_folder(config: &PytorchConfig, variable: Variable<'_>) -> Result<PathBuf, String> {
    let usual = || {
        let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let caches = caches.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
        caches.filter(|path| path.is_absolute()).map(|path| path.join("deuteron/pytorch"))
    };
    let folder = config.cache.clone().or_else(usual);
    let folder = folder.ok_or(
        "there is no folder to keep a compiled shim in: HOME is not set; name one by \
                               --backend-config=pytorch,cache=DIR",
    )?;
    let named = |why: &dyn fmt::Display| {
        let folder = folder.display();
        format!(
            "'{folder}' cannot keep a compiled shim: {why}; name another folder by --backend-config=pytorch,cache=DIR"
        )
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| named(&error))?;
    let folder = folder.canonicalize().map_err(|error| named(&error))?;
    check_own(&folder, true).map_err(|why| named(&why))?;
    // A user who can rename a folder above can put another in its place.
    folder.ancestors().skip(1).try_for_each(check_above).map_err(|why| named(&why))?;
    Ok(folder)
}

/// Checks that a file or folder is this user's, and that no other user can write to it.
fn check_own(path: &Path, is_folder: bool) -> Result<(), String> {
    let shown = path.display();
    let known = fs::symlink_metadata(path).map_err(|error| format!("'{shown}': {error}"))?;
    if known.is_dir() != is_folder || known.file_type().is_symlink() {
        return Err(format!("'{shown}' is not a {}", if is_folder { "folder" } else { "file" }));
    }
    if known.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("'{shown}' belongs to another user"));
    }
    if known.mode() & WRITE_BY_OTHERS != 0 {
        return Err(format!("others can write to '{shown}': take that away by chmod go-w"));
    }
    Ok(())
}

/// Checks that no other user can rename the contents of a folder.
fn check_above(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    let known = fs::metadata(folder).map_err(|error| format!("'{shown}': {error}"))?;
    let is_shared = known.mode() & WRITE_BY_OTHERS != 0 && known.mode() & STICKY == 0;
    let is_trusted = [0, rustix::process::geteuid().as_raw()].contains(&known.uid());
    if is_shared || !is_trusted {
        return Err(format!("others can rename what is in '{shown}', which is above it"));
    }
    Ok(())
}

/// The bits of a mode that let the group and others write.
const WRITE_BY_OTHERS: u32 = 0o022;
/// The bit of a folder's mode by which only the owner of an entry can rename it.
const STICKY: u32 = 0o1000;

/// Returns the version in torch's headers.
fn version(include: &Path) -> Option<String> {
    let texts = ["torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"];
    let text =
        texts.iter().filter_map(|name| header(include, name)).find(|text| text.contains("TORCH_VERSION_MAJOR"))?;
    let part = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("#define ")?.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    let parts = ["TORCH_VERSION_MAJOR", "TORCH_VERSION_MINOR", "TORCH_VERSION_PATCH"].map(part);
    let [Some(major), Some(minor), Some(patch)] = parts else { return None };
    Some(format!("{major}.{minor}.{patch}"))
}

fn header(include: &Path, name: &str) -> Option<String> {
    let mut text = String::new();
    File::open(include.join(name)).ok()?.take(TORCH_HEADER_SIZE_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the library of torch's basic types, which is small.
fn core_library(folder: &Path) -> Option<PathBuf> {
    let plain = folder.join("libc10.so");
    if plain.is_file() {
        return Some(plain);
    }
    let entries = fs::read_dir(folder).ok()?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    names.retain(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"libc10.so.")));
    names.sort();
    names.pop()
}

/// Returns true if a library has a text, as in the names of its functions.
fn has_text(path: &Path, text: &[u8]) -> io::Result<bool> {
    let mut bytes = Vec::new();
    File::open(path)?.take(TORCH_LIBRARY_SIZE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes.windows(text.len()).any(|place| place == text))
}

/// Waits for the end of a process and of those that it has started; `None` if it took too long and
/// was ended.
fn wait(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let by = clock::now() + limit;
    let group = Pid::from_child(&child);
    let pidfd = pidfd_open(group, PidfdFlags::empty())?;
    loop {
        let left = by.since(clock::now());
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&pidfd.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) if by <= clock::now() => {
                let _ = kill_process_group(group, Signal::KILL);
                child.wait()?;
                return Ok(None);
            }
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return child.wait().map(Some),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the first line of the compiler's notes that names an error.
fn first_error(mut notes: &File) -> String {
    let mut bytes = Vec::new();
    let read = notes.rewind().and_then(|()| notes.take(SHIM_NOTES_SIZE_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let tells = |line: &&str| line.contains("error") || line.contains("undefined reference");
    let line = text.lines().find(tells).or_else(|| text.lines().find(|line| !line.trim().is_empty()));
    match (read, line) {
        (Err(error), _) => format!("its notes cannot be read: {error}"),
        (Ok(_), None) => "it does not say why".to_owned(),
        (Ok(_), Some(line)) => line.trim().to_owned(),
    }
}

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

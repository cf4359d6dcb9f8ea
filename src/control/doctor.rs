//! The report of `deuteron doctor` on this machine: engines and the places searched for them,
//! Python, kernel, cores, memory, files, GPUs; and what a server with these flags would serve: its
//! addresses, files and models. Plain text for a person, and for an issue. Nothing is served and no
//! model is loaded; the only programs that are run are the libraries of engines and the Python
//! interpreter, as a server with these flags would.

mod serving;

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, getrlimit};

use crate::control::engines::engine::EngineName;
use crate::control::engines::frameworks::{OPENVINO, TENSORFLOW};
use crate::control::engines::gpu_engine::HostGpus;
use crate::control::engines::library_search::{
    LibraryCandidate, LibrarySearch, ONNX_RUNTIME, SearchedPlace, SoughtLibrary,
};
use crate::control::engines::pytorch_shim::{self, FoundTorch, TORCH, Variable};
use crate::control::machine::cores::{self, CorePlan, CoreRequest};
use crate::control::machine::cpu_quota::{cores_for, cpu_quota};
use crate::control::machine::process_memory::MemoryLimit;
use crate::control::machine::thread_watch::{self, ThreadLook};
use crate::engines::{Onnxruntime, Openvino, Tensorflow};
use crate::process::python::archive::Archives;
use crate::process::python::environment::{InterpreterSearch, thread_variable_names};
use crate::runtime::executor::{IoPath, Runtime};
use crate::runtime::ring::spin::Spin;
use crate::settings::{Engine, GpuUse, Io, PytorchRunner, Settings};

pub use serving::AddressFinding;

/// The findings.
#[derive(Debug, Default)]
pub struct Diagnosis {
    /// The text.
    pub text: String,
    /// The reasons that a server with these flags cannot run.
    pub faults: Vec<String>,
    /// The reason that no Python model can run; `None` if an interpreter was found.
    no_python: Option<String>,
}

impl Diagnosis {
    /// Examines this machine, for a server with these settings, whose addresses were tried already.
    pub fn new(settings: &Settings, addresses: &[AddressFinding]) -> Self {
        let mut diagnosis = Self::default();
        let (version, machine) = (env!("CARGO_PKG_VERSION"), env::consts::ARCH);
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        diagnosis.line(&format!("deuteron {version} on Linux {}, {machine}", release.trim()));
        diagnosis.engines(settings, &LibrarySearch::of_process(&ONNX_RUNTIME));
        diagnosis.frameworks(settings);
        diagnosis.python(settings);
        diagnosis.pytorch(settings, &LibrarySearch::of_process(&TORCH), &pytorch_shim::process_variable);
        diagnosis.sockets(settings.io);
        diagnosis.limits(settings);
        diagnosis.addresses(addresses);
        diagnosis.files(settings);
        diagnosis.cache(settings);
        diagnosis.models(settings);
        diagnosis.gpus(settings);
        diagnosis.verdict(settings);
        diagnosis
    }

    fn verdict(&mut self, settings: &Settings) {
        let verdict = match self.faults.as_slice() {
            [] if settings.repositories.is_empty() => {
                "A server with these flags can run. With a path, as in `deuteron doctor DIRECTORY`, its models are checked \
                 too."
                    .to_owned()
            }
            [] => "A server with these flags can run.".to_owned(),
            [fault] => format!("A server with these flags cannot run: {fault}."),
            faults => format!("A server with these flags cannot run:\n  {}", faults.join("\n  ")),
        };
        self.line(&format!("\n{verdict}"));
    }

    /// Lists the places of the search, their contents, and the library that is used: the first
    /// usable one.
    fn engines(&mut self, settings: &Settings, search: &LibrarySearch) {
        let config = &settings.backend_config.onnxruntime;
        let (named, places) = match &config.library {
            Some(path) => {
                let libraries = ONNX_RUNTIME.in_named(path);
                let source = "--backend-config=onnxruntime,library";
                (true, vec![SearchedPlace { source, path: Some(path.clone()), libraries }])
            }
            None => (false, search.places()),
        };
        self.head("Engines of ONNX models");
        self.line(&format!("  {}: always there", EngineName::embedded()));
        self.line("  ONNX Runtime, in the order of the search:");
        // A library named by a flag is opened, whichever engine is chosen.
        let mut is_settled = config.engine == Some(Engine::Embedded) && !named;
        let mut used = None;
        for SearchedPlace { source, path, libraries } in places {
            let place = path.map(|path| path.display().to_string());
            match (&place, libraries.as_slice()) {
                (None, _) => self.line(&format!("    {source}: not set")),
                (Some(place), []) => self.line(&format!("    {source} ({place}): not there")),
                (Some(_), _) => {}
            }
            for library in libraries {
                let what = match is_settled {
                    true => "not tried".to_owned(),
                    false => Onnxruntime::open(&library).map_or_else(
                        |why| format!("not used: {why}"),
                        |opened| {
                            is_settled = true;
                            let name = EngineName::of(Some(&opened)).to_string();
                            let on_gpus = opened.why_no_gpu().map(|why| format!("; not on GPUs: {why}"));
                            used = Some(name.clone());
                            format!("used: {name}{}", on_gpus.unwrap_or_default())
                        },
                    ),
                };
                self.line(&format!("    {source}: {}: {what}", library.display()));
            }
        }
        let chosen = match (config.engine, used) {
            (Some(Engine::Embedded), _) => format!("{} (--onnx-engine=embedded)", EngineName::embedded()),
            (_, Some(used)) => used,
            (Some(Engine::Onnxruntime), None) => {
                "nothing: --onnx-engine=onnxruntime, and no library can be used".to_owned()
            }
            (None, None) => EngineName::embedded().to_string(),
        };
        self.line(&format!("  so they run on {chosen}"));
        if !is_settled && (named || config.engine == Some(Engine::Onnxruntime)) {
            self.faults.push("no library of ONNX Runtime that the flags ask for can be used".to_owned());
        }
    }

    /// Lists the libraries of OpenVINO and TensorFlow. Other models need none, so their absence is
    /// no fault.
    fn frameworks(&mut self, settings: &Settings) {
        self.head("OpenVINO and TensorFlow models");
        let config = &settings.backend_config.frameworks;
        let extension = config.openvino_extension.as_deref();
        let openvino = |path: &Path| Openvino::open(path, extension).map(|opened| opened.version().to_owned());
        self.framework("OpenVINO", &OPENVINO, "openvino", config.openvino_library.as_deref(), &openvino);
        let tensorflow = |path: &Path| Tensorflow::open(path).map(|opened| opened.version().to_owned());
        self.framework("TensorFlow", &TENSORFLOW, "tensorflow-cpu", config.tensorflow_library.as_deref(), &tensorflow);
    }

    /// Lists the libraries found of one of them: the first usable one is used.
    fn framework(
        &mut self,
        name: &str,
        sought: &'static SoughtLibrary,
        package: &str,
        named: Option<&Path>,
        open: &dyn Fn(&Path) -> Result<String, String>,
    ) {
        let candidates = match named {
            None => LibrarySearch::of_process(sought).candidates(),
            Some(path) => {
                let source = "--backend-config";
                sought.in_named(path).into_iter().map(|path| LibraryCandidate { path, source }).collect()
            }
        };
        let mut is_found = false;
        for LibraryCandidate { path, source } in candidates {
            let what = match is_found {
                true => "not tried".to_owned(),
                false => open(&path)
                    .map_or_else(|why| format!("not used: {why}"), |version| format!("used: {name} {version}")),
            };
            is_found |= what.starts_with("used");
            self.line(&format!("  {source}: {}: {what}", path.display()));
        }
        if !is_found {
            self.line(&format!("  {name}: not found; pip install {package}, or name its library"));
        }
        if !is_found && named.is_some() {
            self.faults.push(format!("the library of {name} that the flags name cannot be used"));
        }
    }

    /// Shows the interpreter of Python models. Other models need none, so its absence is no fault.
    fn python(&mut self, settings: &Settings) {
        self.head("Python models");
        let variable = |name: &str| -> Option<OsString> { env::var_os(name) };
        let archives = Archives::new(env::temp_dir());
        let search = InterpreterSearch {
            execution_environment: None,
            model_directory: Path::new("/"),
            configured: settings.backend_config.python.interpreter.as_deref(),
            variable: &variable,
            archives: &archives,
        };
        let text = match search.find() {
            Err(why) => {
                self.no_python = Some(why.to_string());
                format!("  cannot run: {why}")
            }
            Ok(found) => format!("  {} ({}): {}", found.path.display(), found.source, ask_python(&found.path)),
        };
        self.line(&text);
        let directory = &settings.backend_directory;
        let is_there = if directory.is_dir() { "" } else { ", which is not there" };
        self.line(&format!("  Python-based backends: {}{is_there}", directory.display()));
    }

    /// Shows the torch of PyTorch models, and the compiler of its shim. Other models need none, so
    /// its absence is no fault.
    fn pytorch(&mut self, settings: &Settings, search: &LibrarySearch, variable: Variable<'_>) {
        let config = &settings.backend_config.pytorch;
        self.head("PyTorch models");
        let mut used = None;
        for candidate in pytorch_shim::candidates(config, search) {
            let what = match FoundTorch::of(&candidate) {
                Ok(torch) if used.is_none() => {
                    let text = format!("used: PyTorch {}", torch.version);
                    used = Some(torch);
                    text
                }
                Ok(_) => "not tried".to_owned(),
                Err(why) => format!("not used: {why}"),
            };
            self.line(&format!("  {}: {}: {what}", candidate.source, candidate.path.display()));
        }
        let native = match (used, config.runner) {
            (_, Some(PytorchRunner::Python)) => Err("--backend-config=pytorch,runner=python is given".to_owned()),
            (None, _) => Err("no torch was found with its library and headers".to_owned()),
            (Some(torch), _) => match torch.kept_shim(config, variable) {
                Ok(Some(shim)) => Ok(format!("{torch}, by the shim '{}'", shim.display())),
                Ok(None) => match pytorch_shim::find_compiler(variable) {
                    Some(compiler) => {
                        let compiler = compiler.display();
                        Ok(format!("{torch}, by a shim that '{compiler}' compiles when the first is loaded"))
                    }
                    None => Err(pytorch_shim::NO_COMPILER.to_owned()),
                },
                Err(why) => Err(why),
            },
        };
        match native {
            Ok(native) => self.line(&format!("  so they run on {native}")),
            Err(why) => {
                self.line(&format!("  so they run in processes of Python, which needs torch there: {why}"));
                if config.library.is_some() || config.runner == Some(PytorchRunner::Native) {
                    self.faults.push(format!("PyTorch cannot be run as the flags ask: {why}"));
                }
            }
        }
    }

    fn sockets(&mut self, io: Io) {
        self.head("Kernel");
        let open = |path| Runtime::new(path, Spin::Off).map(drop);
        let uring = open(IoPath::Ring);
        let text = match (&uring, io) {
            (Err(error), Io::Ring) => {
                self.faults.push(format!("--io=ring, and io_uring cannot be used: {error}"));
                format!("cannot be used: {error}")
            }
            (Err(error), _) => format!("cannot be used: {error}; sockets are served by epoll, at a cost of some CPU"),
            (Ok(()), Io::Auto | Io::Ring) => "used for sockets".to_owned(),
            (Ok(()), Io::Epoll) => "could be used; --io=epoll is given".to_owned(),
            (Ok(()), Io::Glommio) => "used for sockets by glommio (--io=glommio)".to_owned(),
        };
        self.line(&format!("  io_uring: {text}"));
        let shared = rustix::fs::statvfs("/dev/shm").map(|found| found.f_bavail.saturating_mul(found.f_frsize));
        let shared =
            shared.map_or_else(|error| format!("not there ({error})"), |size| format!("{} free", size_text(size)));
        self.line(&format!("  /dev/shm, for Python models and shared memory: {shared}"));
    }

    fn limits(&mut self, settings: &Settings) {
        self.head("Limits");
        let available = cores::available();
        self.line(&format!("  cores: {} ({})", available.len(), cores::text(&available)));
        let quota = cpu_quota(&|path| fs::read_to_string(path).ok());
        let quota_cores = quota.map(cores_for);
        let quota = quota.map_or_else(
            || "none".to_owned(),
            |cores| format!("the time of {cores:.2} cores, for the threads of {}", cores_for(cores)),
        );
        self.line(&format!("  CPU limit of the control group: {quota}"));
        self.threads(quota_cores.unwrap_or(available.len()).min(available.len()));
        let memory = MemoryLimit::new(settings);
        self.line(&format!("  memory: {}", memory.text()));
        let files = getrlimit(Resource::Nofile);
        let bound = |bound: Option<u64>| bound.map_or_else(|| "any number".to_owned(), |bound| bound.to_string());
        let (soft, hard) = (bound(files.current), bound(files.maximum));
        let connections = settings.connections.count_max;
        self.line(&format!("  open files: {soft} (at most {hard}); connections of a shard: {connections}"));
        let policies = settings.host_policies.iter().map(|(name, cores)| (name.clone(), cores.clone()));
        let request = CoreRequest {
            shards: settings.shards,
            worker_cores: settings.worker_cores.clone(),
            policy_cores: policies.collect(),
            ..CoreRequest::default()
        };
        if let Err(error) = CorePlan::new(&available, &request) {
            self.faults.push(error.to_string());
        }
    }

    /// Says where libraries are told to start more threads than there are cores, and which processes of the servers that
    /// run have more runnable threads than cores.
    fn threads(&mut self, cores: usize) {
        for name in thread_variable_names() {
            let Some(count) = env::var_os(name).and_then(|value| value.to_str()?.trim().parse::<usize>().ok()) else {
                continue;
            };
            if count > cores {
                self.line(&format!(
                    "  {name} is {count}, for the time of {cores} cores: libraries start more threads than cores"
                ));
            }
        }
        for (pid, server) in thread_watch::of_running_servers() {
            if let Some(ThreadLook { runnable, cores }) = thread_watch::find(pid, thread_watch::quota()) {
                self.line(&format!(
                    "  process {pid} of server {server}: {runnable} runnable threads for {cores} cores"
                ));
            }
        }
    }

    fn gpus(&mut self, settings: &Settings) {
        self.head("GPUs");
        if let Ok(driver) = fs::read_to_string("/proc/driver/nvidia/version") {
            self.line(&format!("  {}", driver.lines().next().unwrap_or_default().trim()));
        }
        let host = HostGpus::new(settings);
        for gpu in host.gpus().all() {
            let found = gpu.properties();
            let ((major, minor), size) = (found.capability, size_text(found.memory as u64));
            let (index, name) = (found.index, &found.name);
            self.line(&format!("  GPU {index}: {name}, compute capability {major}.{minor}, {size}"));
        }
        if let Some(why) = host.gpus().why_absent() {
            let so = match settings.gpu {
                GpuUse::Auto => "models with KIND_GPU are refused; --gpu=off serves them on the CPU",
                GpuUse::Off => "models with KIND_GPU are served on the CPU",
                GpuUse::Require => "--gpu=require is given",
            };
            self.line(&format!("  none: {why}; {so}"));
        }
        if let Err(error) = host.check_required() {
            self.faults.push(error.to_string());
        }
    }

    fn head(&mut self, text: &str) {
        self.line(&format!("\n{text}"));
    }

    fn line(&mut self, text: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{text}");
    }
}

/// Returns the version of an interpreter and of its numpy, or the reason that it cannot run models.
fn ask_python(interpreter: &Path) -> String {
    let asked = "import platform; print('Python', platform.python_version())\n\
                 try:\n import numpy; print('numpy', numpy.__version__)\n\
                 except ImportError: print('no numpy, which Python models need')";
    let output = Command::new(interpreter).args(["-c", asked]).stdin(Stdio::null()).output();
    match output {
        Err(error) => format!("it cannot be started: {error}"),
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("it cannot run: {}", text.lines().last().unwrap_or("it says nothing"))
        }
        Ok(output) => String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>().join(", "),
    }
}

fn size_text(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::engines::pytorch_shim::testing::stand_in;

    #[test]
    fn the_torch_that_is_used_is_told_with_what_compiles_for_it_and_why_there_is_none() {
        let nowhere = env::temp_dir().join(format!("deuteron-doctor-torch-{}", std::process::id()));
        let told = |search: &LibrarySearch, runner, path: &str| {
            let mut settings = Settings::default();
            settings.backend_config.pytorch.cache = Some(nowhere.clone());
            settings.backend_config.pytorch.runner = runner;
            let variable = |name: &str| (name == "PATH").then(|| path.into());
            let mut diagnosis = Diagnosis::default();
            diagnosis.pytorch(&settings, search, &variable);
            diagnosis
        };
        let here = LibrarySearch { virtual_environment: Some(stand_in().into()), ..LibrarySearch::nowhere(&TORCH) };
        let found = told(&here, None, "/usr/local/bin:/usr/bin");
        assert!(found.text.contains("libtorch_cpu.so: used: PyTorch 9.8.7\n"), "{}", found.text);
        assert!(
            found.text.contains("compiles when the first is loaded\n") && found.faults.is_empty(),
            "{}",
            found.text
        );
        let lacking = told(&here, Some(PytorchRunner::Native), "/nowhere");
        assert!(
            lacking.text.contains("in processes of Python") && lacking.text.contains("install g++"),
            "{}",
            lacking.text
        );
        assert_eq!(lacking.faults.len(), 1);
        let absent = told(&LibrarySearch::nowhere(&TORCH), None, "/usr/bin");
        assert!(absent.text.ends_with("no torch was found with its library and headers\n") && absent.faults.is_empty());
        fs::remove_dir_all(&nowhere).unwrap();
    }

    #[test]
    fn what_the_flags_require_and_is_not_there_is_a_fault_and_each_place_is_told() {
        let root = env::temp_dir().join(format!("deuteron-doctor-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let library = root.join("libonnxruntime.so.1.2.3");
        fs::write(&library, "this is no library").unwrap();
        let search = LibrarySearch { library: Some(library.clone().into()), ..LibrarySearch::nowhere(&ONNX_RUNTIME) };
        let told = |engine| {
            let mut settings = Settings::default();
            settings.backend_config.onnxruntime.engine = engine;
            let mut diagnosis = Diagnosis::default();
            diagnosis.engines(&settings, &search);
            diagnosis
        };
        let (free, required, embedded) = (told(None), told(Some(Engine::Onnxruntime)), told(Some(Engine::Embedded)));
        let broken = format!("    ORT_DYLIB_PATH: {}: not used: ", library.display());
        assert!(free.text.contains(&broken) && free.text.contains("\n    VIRTUAL_ENV: not set\n"), "{}", free.text);
        assert!(free.text.ends_with("so they run on the embedded engine (rten 0.27.0)\n"), "{}", free.text);
        assert!(embedded.text.contains("not tried") && embedded.faults.is_empty(), "{}", embedded.text);
        assert_eq!((free.faults.len(), required.faults.len()), (0, 1));
        let mut off = Diagnosis::default();
        off.limits(&Settings { worker_cores: Some(vec![1 << 14]), ..Settings::default() });
        assert!(off.faults.concat().contains("--worker-cores"), "{:?}", off.faults);
        fs::remove_dir_all(&root).unwrap();
    }
}

//! The packages that Python models import, against those of the interpreter that a server would start. The code of a model
//! is read and not run; each interpreter is asked once which modules it finds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::control::check::cure::{INSTALL_PYTHON, MissingKind, MissingPart, RefusedModel};
use crate::control::check::imports::{ImportedModule, imports};
use crate::control::check::packages::{is_brought, needs_gpu, package_of};
use crate::control::engines::library_search::LibrarySearch;
use crate::control::engines::pytorch_shim::{self, FoundTorch, TORCH};
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::pinned_files::open_python_file;
use crate::control::repository::repositories::Repositories;
use crate::error::Error;
use crate::limits::PYTHON_FILE_SIZE_MAX;
use crate::model::PythonModel;
use crate::model::config::ConfigDraft;
use crate::model::repository::ModelDirectory;
use crate::process::python::archive::Archives;
use crate::process::python::environment::InterpreterSearch;
use crate::settings::{PytorchRunner, Settings};

/// The outcome for one model.
#[derive(Clone, Debug, Default)]
pub struct PythonFinding {
    /// The reason that the model cannot be loaded, and its cure.
    pub refusal: Option<(String, String)>,
    /// The packages that are missing.
    pub missing: Vec<MissingPart>,
    /// Imports that may fail later.
    pub warnings: Vec<String>,
    /// Facts that were not checked.
    pub notes: Vec<String>,
}

/// The findings of the Python models, by the index of the repository and the name.
#[derive(Debug, Default)]
pub struct PythonFindings {
    found: BTreeMap<(usize, String), PythonFinding>,
}

/// A model's imports, and the interpreter of its processes.
struct PythonLook {
    imports: Vec<ImportedModule>,
    interpreter: ModelInterpreter,
    /// The file whose imports they are, for a person.
    file: String,
}

/// The interpreter of a model.
enum ModelInterpreter {
    /// In an archive, which is not unpacked.
    Archived(String),
    /// The program, and the setting that named it.
    Found(PathBuf, String),
    /// The reason that there is no interpreter.
    Missing(String),
}

/// The place of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModulePlace {
    Absent,
    Package,
    Standard,
}

impl PythonFindings {
    /// Looks at the Python models of all repositories. `installed` are the packages that a deployment installs, by their names in
    /// the index; they stand for those of this machine.
    pub fn new(settings: &Settings, repositories: &Repositories, installed: Option<&[String]>) -> Self {
        let mut looks = BTreeMap::new();
        for (index, source) in (0..).map_while(|index| Some((index, repositories.source(index)?))) {
            let Ok(scan) = source.scan(settings) else { continue };
            for directory in &scan.models {
                if let Some(look) = look(settings, source, directory) {
                    looks.insert((index, directory.qualified_name()), look);
                }
            }
        }
        let mut asked: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
        for look in looks.values() {
            if let ModelInterpreter::Found(path, _) = &look.interpreter {
                let names = look.imports.iter().map(|module| module.name.clone());
                asked.entry(path.clone()).or_default().extend(names);
            }
        }
        let answers: BTreeMap<_, _> = asked.iter().map(|(path, names)| (path.clone(), ask(path, names))).collect();
        let finding = |look: &PythonLook| look.finding(&answers, installed);
        Self { found: looks.iter().map(|(key, look)| (key.clone(), finding(look))).collect() }
    }

    /// Returns the finding of a model; `None` if it runs no Python.
    pub fn of(&self, origin: usize, name: &str) -> Option<&PythonFinding> {
        self.found.get(&(origin, name.to_owned()))
    }
}

/// The imports of a model that runs in Python; `None` for another one, and for one whose configuration is refused.
fn look(settings: &Settings, source: &ModelSource, directory: &ModelDirectory) -> Option<PythonLook> {
    let draft = source.draft(directory, settings).ok()?;
    let torch =
        || ImportedModule { name: "torch".to_owned(), path: "torch".to_owned(), line: 0, is_conditional: false };
    let python = draft.python().ok()?;
    let Some(python) = python else {
        let in_python = draft.pytorch_filename().is_some() && !runs_natively(settings);
        let environment = draft.parameter("EXECUTION_ENV_PATH").map(str::to_owned);
        let interpreter = interpreter(settings, source, directory, environment.as_deref());
        let file = "PyTorch".to_owned();
        return in_python.then(|| PythonLook { imports: vec![torch(), numpy()], interpreter, file });
    };
    let interpreter = interpreter(settings, source, directory, python.environment.as_deref());
    let mut imports =
        if python.is_own() { vec![torch()] } else { imports_of(settings, source, directory, &draft, &python) };
    if imports.iter().all(|module| module.name != "numpy" || module.is_conditional) {
        imports.retain(|module| module.name != "numpy");
        imports.push(numpy());
    }
    Some(PythonLook { imports, interpreter, file: python.file })
}

/// The module that the server's own part of each Python process imports.
fn numpy() -> ImportedModule {
    ImportedModule { name: "numpy".to_owned(), path: "numpy".to_owned(), line: 0, is_conditional: false }
}

/// The modules that the files of the selected versions import and that do not lie beside them.
fn imports_of(
    settings: &Settings,
    source: &ModelSource,
    directory: &ModelDirectory,
    draft: &ConfigDraft,
    python: &PythonModel,
) -> Vec<ImportedModule> {
    let versions = directory.choose_versions(&draft.version_policy()).map(|choice| choice.versions).unwrap_or_default();
    let mut found: Vec<ImportedModule> = Vec::new();
    for version in versions {
        let folder = source.root.join(directory.version_path(version));
        let backend = settings.backend_directory.join(draft.backend());
        let opened = match python.is_backend {
            true => std::fs::File::open(backend.join(&python.file)).ok(),
            false => open_python_file(source, &format!("{}/{}", directory.version_path(version), python.file)).ok(),
        };
        let mut text = Vec::new();
        // A file that cannot be read has its reason elsewhere.
        let Some(Ok(_)) = opened.map(|file| file.take(PYTHON_FILE_SIZE_MAX).read_to_end(&mut text)) else { continue };
        let places = [folder, source.root.join(&directory.path), backend];
        for module in imports(&String::from_utf8_lossy(&text)) {
            let is_known = found.iter().any(|known| known.name == module.name);
            if !is_known && !OWN_MODULES.contains(&module.name.as_str()) && !is_beside(&places, &module.name) {
                found.push(module);
            }
        }
    }
    found
}

/// Modules that the server brings.
const OWN_MODULES: [&str; 3] = ["__future__", "c_python_backend_utils", "triton_python_backend_utils"];

/// True for a module that is a file or a folder in one of the places where a model's process looks first.
fn is_beside(places: &[PathBuf], name: &str) -> bool {
    places.iter().any(|place| {
        let beside = place.join(name);
        beside.is_dir() || beside.with_extension("py").is_file() || beside.with_extension("so").is_file()
    })
}

/// True if PyTorch models run without Python on this machine.
fn runs_natively(settings: &Settings) -> bool {
    let config = &settings.backend_config.pytorch;
    let variable = &pytorch_shim::process_variable;
    let is_usable = |torch: FoundTorch| {
        let has_shim = torch.kept_shim(config, variable).is_ok_and(|shim| shim.is_some());
        has_shim || pytorch_shim::find_compiler(variable).is_some()
    };
    let found = pytorch_shim::candidates(config, &LibrarySearch::of_process(&TORCH));
    config.runner != Some(PytorchRunner::Python)
        && found.iter().filter_map(|one| FoundTorch::of(one).ok()).any(is_usable)
}

fn interpreter(
    settings: &Settings,
    source: &ModelSource,
    directory: &ModelDirectory,
    environment: Option<&str>,
) -> ModelInterpreter {
    let model_directory = source.root.join(&directory.path);
    if let Some(parameter) = environment.filter(|parameter| !parameter.is_empty()) {
        let path = parameter.replace("$$TRITON_MODEL_DIRECTORY", &model_directory.to_string_lossy());
        if Path::new(&path).is_file() {
            return ModelInterpreter::Archived(path);
        }
    }
    let search = InterpreterSearch {
        execution_environment: environment,
        model_directory: &model_directory,
        configured: settings.backend_config.python.interpreter.as_deref(),
        variable: &|name| std::env::var_os(name),
        archives: &Archives::new(std::env::temp_dir()),
    };
    match search.find() {
        Ok(found) => ModelInterpreter::Found(found.path, found.source.to_string()),
        Err(why) => ModelInterpreter::Missing(why.text().to_owned()),
    }
}

impl PythonLook {
    fn finding(
        &self,
        answers: &BTreeMap<PathBuf, Result<BTreeMap<String, ModulePlace>, String>>,
        installed: Option<&[String]>,
    ) -> PythonFinding {
        let no_answer = BTreeMap::new();
        let (answer, python) = match &self.interpreter {
            // The image has its own Python.
            ModelInterpreter::Missing(_) | ModelInterpreter::Archived(_) if installed.is_some() => {
                (&no_answer, String::new())
            }
            ModelInterpreter::Missing(why) => {
                let cure = RefusedModel { reason: why, backend: "", nested: None }.change();
                return refused(why.clone(), cure);
            }
            ModelInterpreter::Archived(path) => {
                let notes = vec![format!("its packages are in '{path}', which is not unpacked here")];
                return PythonFinding { notes, ..PythonFinding::default() };
            }
            ModelInterpreter::Found(path, source) => match answers.get(path) {
                Some(Ok(answer)) => (answer, format!("'{}' ({source})", path.display())),
                Some(Err(why)) if installed.is_none() => {
                    let text = format!("the Python '{}' ({source}) cannot be asked: {why}", path.display());
                    return refused(text, INSTALL_PYTHON.to_owned());
                }
                Some(Err(_)) | None => (&no_answer, String::new()),
            },
        };
        match installed {
            Some(installed) => self.against_packages(answer, installed),
            None => self.against_interpreter(answer, &python),
        }
    }

    /// The imports that an interpreter does not find.
    fn against_interpreter(&self, answer: &BTreeMap<String, ModulePlace>, python: &str) -> PythonFinding {
        let is_absent = |module: &&ImportedModule| answer.get(&module.name) == Some(&ModulePlace::Absent);
        let (later, first): (Vec<_>, Vec<_>) =
            self.imports.iter().filter(is_absent).partition(|module| module.is_conditional);
        let warn = |module: &&ImportedModule| {
            let (file, line, name) = (&self.file, module.line, &module.name);
            format!(
                "{file}:{line} imports '{name}' when it is needed, and {python} does not have it: {}",
                install(&[*module])
            )
        };
        let mut finding = PythonFinding { warnings: later.iter().map(warn).collect(), ..PythonFinding::default() };
        finding.missing = first.iter().chain(&later).map(|module| missing_package(module)).collect();
        if !first.is_empty() {
            let names: Vec<_> = first.iter().map(|module| format!("'{}'", module.name)).collect();
            let reason = format!("{} needs {}, which {python} does not have", self.file, names.join(", "));
            finding.refusal = Some((reason, install(&first)));
        }
        finding
    }

    /// The imports that none of a deployment's packages is known to bring. They may come with others, so none is refused.
    fn against_packages(&self, answer: &BTreeMap<String, ModulePlace>, installed: &[String]) -> PythonFinding {
        let is_absent = |module: &&ImportedModule| {
            answer.get(&module.name) != Some(&ModulePlace::Standard) && !is_brought(&module.name, installed)
        };
        // A new image gets it in any case.
        let absent: Vec<_> = self.imports.iter().filter(is_absent).filter(|module| module.name != "numpy").collect();
        let warn = |module: &&ImportedModule| {
            let (file, name, package) = (&self.file, &module.name, package_of(&module.name));
            format!(
                "{file} imports '{name}', which no package of the deployment is known to bring: add {package} to its pip install"
            )
        };
        PythonFinding {
            warnings: absent.iter().map(warn).collect(),
            missing: absent.iter().map(|module| missing_package(module)).collect(),
            ..PythonFinding::default()
        }
    }
}

fn refused(reason: String, cure: String) -> PythonFinding {
    PythonFinding { refusal: Some((reason, cure)), ..PythonFinding::default() }
}

fn missing_package(module: &ImportedModule) -> MissingPart {
    MissingPart { kind: MissingKind::Package, name: package_of(&module.name) }
}

/// The command that installs the packages of modules.
fn install(modules: &[&ImportedModule]) -> String {
    let packages: Vec<_> = modules.iter().map(|module| package_of(&module.name)).collect();
    let on_gpus: Vec<_> =
        modules.iter().filter(|module| needs_gpu(&module.name)).map(|module| module.name.as_str()).collect();
    let gpus = match on_gpus.as_slice() {
        [] => String::new(),
        names => format!(" ({} needs an NVIDIA GPU)", names.join(", ")),
    };
    format!("pip install {}{gpus}", packages.join(" "))
}

/// Asks an interpreter for the places of modules. It finds them without importing any.
fn ask(interpreter: &Path, names: &BTreeSet<String>) -> Result<BTreeMap<String, ModulePlace>, String> {
    let mut child = Command::new(interpreter)
        .args(["-c", FIND_SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let list: Vec<_> = names.iter().map(String::as_str).collect();
    // A program that does not read it has its reason on standard error.
    let _ = child.stdin.take().map(|mut input| input.write_all(list.join("\n").as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(text.lines().last().map_or_else(|| output.status.to_string(), str::to_owned));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let place = |line: &str| {
        let (name, place) = line.split_once(' ')?;
        let place = match place {
            "standard" => ModulePlace::Standard,
            "package" => ModulePlace::Package,
            _ => ModulePlace::Absent,
        };
        Some((name.to_owned(), place))
    };
    Ok(text.lines().filter_map(place).collect())
}

/// Prints the place of each module that standard input names.
const FIND_SCRIPT: &str = r#"
import importlib.util, sys, sysconfig
if sys.path and sys.path[0] == "":
    del sys.path[0]
standard = set(sys.builtin_module_names) | set(getattr(sys, "stdlib_module_names", ()))
library = sysconfig.get_paths()["stdlib"]
for name in sys.stdin.read().split():
    try:
        found = importlib.util.find_spec(name)
    except (AttributeError, ImportError, ValueError):
        found = None
    origin = getattr(found, "origin", None) or ""
    is_standard = name in standard or (origin.startswith(library) and "-packages" not in origin)
    print(name, "standard" if is_standard else "absent" if found is None else "package")
"#;

/// The refusal of a model by its finding.
pub fn check(finding: Option<&PythonFinding>) -> Result<(), Error> {
    match finding.and_then(|finding| finding.refusal.as_ref()) {
        Some((reason, _)) => Err(Error::unavailable(reason.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(source: &str) -> PythonLook {
        let interpreter = ModelInterpreter::Found("/p".into(), "PATH".to_owned());
        PythonLook { imports: imports(source), interpreter, file: "model.py".to_owned() }
    }

    fn answers(absent: &[&str]) -> BTreeMap<PathBuf, Result<BTreeMap<String, ModulePlace>, String>> {
        let place = |name: &str| match absent.contains(&name) {
            true => ModulePlace::Absent,
            false if name == "os" => ModulePlace::Standard,
            false => ModulePlace::Package,
        };
        let names = ["os", "numpy", "cv2", "torch", "cupy", "yaml"];
        let answer = names.iter().map(|name| ((*name).to_owned(), place(name))).collect();
        BTreeMap::from([("/p".into(), Ok(answer))])
    }

    #[test]
    fn missing_packages_refuse_a_model_and_those_of_a_function_warn() {
        let source = "import os, numpy\nimport cv2\nimport cupy\ndef f():\n    import yaml";
        let finding = look(source).finding(&answers(&["cv2", "cupy", "yaml"]), None);
        let (reason, cure) = finding.refusal.clone().unwrap();
        assert_eq!(reason, "model.py needs 'cv2', 'cupy', which '/p' (PATH) does not have");
        assert_eq!(cure, "pip install opencv-python-headless cupy-cuda12x (cupy needs an NVIDIA GPU)");
        let warning =
            "model.py:5 imports 'yaml' when it is needed, and '/p' (PATH) does not have it: pip install pyyaml";
        assert_eq!(finding.warnings, [warning]);
        let names: Vec<_> = finding.missing.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["opencv-python-headless", "cupy-cuda12x", "pyyaml"]);
        assert!(check(Some(&finding)).is_err() && check(None).is_ok());
        assert!(look(source).finding(&answers(&[]), None).refusal.is_none());
    }

    #[test]
    fn the_packages_of_a_deployment_stand_for_those_of_the_machine() {
        let source = "import os, numpy, cv2, torch, yaml";
        let installed = ["opencv-python", "torch"].map(str::to_owned);
        let finding = look(source).finding(&answers(&["numpy", "cv2", "torch"]), Some(&installed));
        assert!(finding.refusal.is_none());
        assert_eq!(finding.warnings.len(), 1, "{:?}", finding.warnings);
        assert!(
            finding.warnings[0].contains("'yaml'") && finding.warnings[0].ends_with("add pyyaml to its pip install")
        );
    }

    #[test]
    fn an_interpreter_that_is_missing_or_fails_or_is_packed_is_told() {
        let with = |interpreter| PythonLook { interpreter, ..look("import os") };
        let missing = with(ModelInterpreter::Missing("No Python".to_owned())).finding(&BTreeMap::new(), None);
        assert_eq!(missing.refusal, Some(("No Python".to_owned(), INSTALL_PYTHON.to_owned())));
        let packed = with(ModelInterpreter::Archived("/e.tar.gz".to_owned())).finding(&BTreeMap::new(), None);
        assert!(
            packed.refusal.is_none() && packed.notes == ["its packages are in '/e.tar.gz', which is not unpacked here"]
        );
        let failing = BTreeMap::from([("/p".into(), Err("it ended".to_owned()))]);
        let (reason, _) = look("import os").finding(&failing, None).refusal.unwrap();
        assert_eq!(reason, "the Python '/p' (PATH) cannot be asked: it ended");
        assert!(ask(Path::new("/nowhere/python3"), &BTreeSet::new()).is_err());
    }
}

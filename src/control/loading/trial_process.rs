//! The process that tries a load ([`crate::control::loading::load_trial`]): reads its order, limits itself, loads, and reports.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::process::{Pid, Resource, Rlimit, Signal};

use crate::control::loading::load_probe;
use crate::control::loading::load_trial::{FAILED, TrialOrder, encode_report};
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::control::repository::beneath::LinkPolicy;
use crate::control::repository::model_source::ModelSource;
use crate::error::Error;
use crate::limits::PYTHON_OOM_SCORE_STEP;
use crate::log;
use crate::queue::worker::panic_text;
use crate::settings::{LogSettings, RepositoryRules, Settings};

/// Loads the version of the order on standard input. Returns the exit status of the process.
pub fn run(settings: &Settings) -> i32 {
    // The server loads the same again, and logs it then.
    log::start(LogSettings::SILENT);
    let outcome = catch_unwind(AssertUnwindSafe(|| read_order().and_then(|order| try_load(settings, order))));
    let outcome =
        outcome.unwrap_or_else(|panic| Err(Error::internal(format!("its load panicked: {}", panic_text(&*panic)))));
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            let mut stdout = io::stdout();
            let written = stdout.write_all(&encode_report(&error)).and_then(|()| stdout.flush());
            if written.is_ok() { FAILED } else { 1 }
        }
    }
}

fn read_order() -> Result<TrialOrder, Error> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(|error| Error::internal(format!("no order: {error}")))?;
    TrialOrder::decode(&bytes).ok_or_else(|| Error::internal("this command is for the server itself"))
}

fn try_load(settings: &Settings, order: TrialOrder) -> Result<(), Error> {
    limit(&order).map_err(|error| Error::internal(format!("a trial cannot limit itself: {error}")))?;
    // A model whose configuration allows both is loaded on the CPU here: loads on GPUs are not
    // tried.
    let TrialOrder { path, is_repository, follows_links, name, renamed_from, version, findings, given, .. } = order;
    let repository_rules = RepositoryRules { refuses_links: !follows_links, ..settings.repository_rules };
    let settings = Arc::new(Settings { uses_gpu_unasked: false, repository_rules, ..settings.clone() });
    let loader = ModelLoader::for_trial(&settings)?;
    let links = if follows_links { LinkPolicy::Followed } else { LinkPolicy::Confined };
    let source = match is_repository {
        true => ModelSource::of_directory_with(path, links).map_err(|error| Error::unavailable(error.to_string()))?,
        false => ModelSource::open(&path, &settings)?,
    };
    let mut directory = match renamed_from.as_str() {
        "" => {
            let found = source.find(&name, &settings)?;
            found.ok_or_else(|| Error::unavailable("it is gone from its repository"))?
        }
        path => source.renamed(path, &name)?,
    };
    directory.given = given.or(directory.given);
    let location = ModelLocation { source: &source, directory: &directory };
    let opened = loader.open(location).map_err(|failure| failure.error().clone())?;
    let loaded = loader.load_version(location, &opened, version)?;
    let outcome = match loader.probes(location, version, &loaded.configured) {
        Some(with_values) => {
            // Behind the order, which was read.
            let progress = io::stdin().as_fd().try_clone_to_owned().map(File::from);
            let progress = progress.map_err(|error| Error::internal(format!("no place for progress: {error}")))?;
            load_probe::run(&loaded, &findings, with_values, &progress)
        }
        None => Ok(()),
    };
    // The process ends now: taking the model apart would only take time.
    std::mem::forget(loaded);
    outcome
}

/// Sets the limits that the server does not set for this process: it ends with the thread that
/// waits for it, has `order.memory` bytes of data, goes first when memory runs out, and leaves no
/// core dump.
fn limit(order: &TrialOrder) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = i32::try_from(order.parent).ok().and_then(Pid::from_raw);
    // The server may have ended before that call.
    if rustix::process::getppid() != parent {
        return Err(rustix::io::Errno::SRCH.into());
    }
    let most = |size| Rlimit { current: Some(size), maximum: Some(size) };
    rustix::process::setrlimit(Resource::Core, most(0))?;
    let allowed = rustix::process::getrlimit(Resource::Data).maximum.unwrap_or(u64::MAX);
    rustix::process::setrlimit(Resource::Data, most(order.memory.min(allowed)))?;
    // A system without the file has no such choice.
    let _ = fs::write("/proc/self/oom_score_adj", PYTHON_OOM_SCORE_STEP.to_string());
    Ok(())
}

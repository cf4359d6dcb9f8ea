//! Cases that need a repository and flags of their own, each suite with its recording and its table of differences.

mod control;
mod generate;
mod logging;
mod python;
mod python_completion;
mod python_loading;
mod sequence;
mod shared_memory;

use std::{fs, path::Path};

use crate::{
    oracle::{case::Case, compare::Difference},
    support::{repository::Flavour, server::Server},
};

/// One suite. Its cases are played in their order against one server.
pub struct Suite {
    /// It is recorded in `recorded_NAME.txt`.
    pub name: &'static str,
    /// Flags of both servers.
    pub flags: &'static [&'static str],
    /// Further flags of Deuteron; `None` if this machine cannot play the suite.
    pub own_flags: fn() -> Option<Vec<String>>,
    /// The requests.
    pub cases: fn() -> Vec<Case>,
    /// Intended differences of Deuteron's answers.
    pub differences: &'static [Difference],
    /// Writes its repository.
    pub write: fn(Flavour, &Path),
}

/// All suites.
pub const SUITES: &[Suite] = &[
    control::SUITE,
    generate::SUITE,
    logging::SUITE,
    python::SUITE,
    python_completion::SUITE,
    python_loading::SUITE,
    sequence::SUITE,
    shared_memory::SUITE,
];

impl Suite {
    /// Starts Deuteron on its repository.
    pub fn deuteron(&self, repository: &Path) -> Option<Server> {
        let own_flags = (self.own_flags)()?;
        let own_flags = own_flags.iter().map(String::as_str);
        let flags: Vec<_> = self.flags.iter().copied().chain(own_flags).collect();
        Some(Server::deuteron(repository, &flags))
    }
}

/// Writes a model in version 1: its configuration without the backend, and the Python that does the same.
fn model(flavour: Flavour, repository: &Path, name: &str, backend: &str, config: &str, python: &str) {
    let folder = repository.join(name);
    let backend = if flavour == Flavour::Triton { "python" } else { backend };
    fs::create_dir_all(folder.join("1")).expect("the folder is ours");
    fs::write(folder.join("config.pbtxt"), format!("backend: \"{backend}\"\n{config}\n")).expect("the folder is ours");
    if flavour == Flavour::Triton {
        fs::write(folder.join("1/model.py"), python).expect("the folder is ours");
    }
}

//! The cases, by the sections of the RFCs.

mod connection;
mod frames;
mod hpack;
mod messages;
mod streams;

use super::case::{Case, Want};

/// All of them, each with a name of its own.
pub fn all() -> Vec<Case> {
    let mut table = Table(Vec::new());
    connection::add(&mut table);
    streams::add(&mut table);
    frames::add(&mut table);
    messages::add(&mut table);
    hpack::add(&mut table);
    table.0
}

pub struct Table(Vec<Case>);

impl Table {
    pub fn add(&mut self, clause: &'static str, name: impl Into<String>, parts: Vec<Vec<u8>>, want: Want) {
        self.open(clause, name, Vec::new(), parts, want);
    }

    /// A case whose client begins with these settings.
    pub fn open(
        &mut self,
        clause: &'static str,
        name: impl Into<String>,
        opening: Vec<u8>,
        parts: Vec<Vec<u8>>,
        want: Want,
    ) {
        let name = name.into();
        assert!(self.0.iter().all(|case| case.name != name), "{name} is there twice");
        self.0.push(Case { clause, name, opening, parts, want });
    }
}

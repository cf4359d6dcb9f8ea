//! Counts from callgrind: the instructions of one binary's own code; and the table that such counts are held against.
//!
//! Only the code of the binary counts. The work of `memcpy` or `malloc` depends on the processor and on libc.

use std::{collections::HashMap, fmt::Write as _};

/// Cost of a piece of work.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cost {
    /// Instructions of the binary itself.
    pub instructions: u64,
    /// Count of memory allocations.
    pub allocations: u64,
}

/// Reads a file from callgrind: the instructions of functions in objects whose path ends with `binary`.
///
/// Lines are `key=(id) name`, with the name where an id comes first; `place cost` of the function that was named last;
/// and behind `calls=COUNT PLACE` one line with the cost of the callee, which is not the caller's own.
pub fn own_instructions(text: &str, binary: &str) -> u64 {
    let mut objects = HashMap::new();
    let (mut is_own, mut is_of_callee, mut sum) = (false, false, 0);
    for line in text.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_own = name(object, &mut objects).ends_with(binary);
        } else if let Some(object) = line.strip_prefix("cob=") {
            name(object, &mut objects);
        } else if line.starts_with("calls=") {
            is_of_callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let is_own = !std::mem::take(&mut is_of_callee) && is_own;
            let instructions: u64 = line.split(' ').nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
            sum += if is_own { instructions } else { 0 };
        }
    }
    sum
}

/// The name of an id, which is remembered from its first use.
fn name(value: &str, names: &mut HashMap<String, String>) -> String {
    match value.split_once(' ') {
        Some((id, name)) if id.starts_with('(') => {
            names.insert(id.to_owned(), name.to_owned());
            name.to_owned()
        }
        _ => names.get(value).cloned().unwrap_or_else(|| value.to_owned()),
    }
}

/// Costs by the names of the counted pieces, and the tools of the count.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Table {
    /// The compiler and the processor.
    pub with: String,
    /// In the order of the counting.
    pub rows: Vec<(String, Cost)>,
}

/// Greatest difference between a count and the table, in percent.
pub const TOLERANCE: u64 = 3;

impl Table {
    /// Reads the text of a table.
    pub fn parse(text: &str) -> Self {
        let with = text.lines().find_map(|line| line.strip_prefix("# With: ")).unwrap_or_default().to_owned();
        let rows = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (allocations, instructions) = (words.next()?, words.next()?);
            let name: Vec<_> = words.rev().collect();
            let cost = Cost { instructions: instructions.parse().ok()?, allocations: allocations.parse().ok()? };
            Some((name.join(" "), cost))
        });
        Self { with, rows: rows.collect() }
    }

    /// Its text.
    pub fn text(&self) -> String {
        let mut text = format!(
            "# Instructions of our own code, and allocations, for one run of each piece of crates/queue/benches/cases/.\n\
             # Written by: UPDATE_EXPECT=1 .ci/run instructions\n# With: {}\n",
            self.with
        );
        for (name, cost) in &self.rows {
            let _ = writeln!(text, "{name:<56} {:>12} {:>6}", cost.instructions, cost.allocations);
        }
        text
    }

    /// Counts that differ from this table by more than the tolerance, one line each.
    pub fn differences(&self, counted: &Self) -> Vec<String> {
        let find =
            |rows: &[(String, Cost)], name: &str| rows.iter().find(|(have, _)| have == name).map(|(_, cost)| *cost);
        let mut lines: Vec<_> = (self.rows.iter())
            .filter(|(name, _)| find(&counted.rows, name).is_none())
            .map(|(name, _)| format!("{name}: is in the table and was not counted"))
            .collect();
        for (name, cost) in &counted.rows {
            let Some(want) = find(&self.rows, name) else {
                lines.push(format!("{name}: is not in the table"));
                continue;
            };
            if cost.instructions.abs_diff(want.instructions) * 100 > want.instructions * TOLERANCE {
                let percent = (cost.instructions as f64 / want.instructions as f64 - 1.0) * 100.0;
                lines.push(format!(
                    "{name}: {} instructions, {percent:+.1} % of {}",
                    cost.instructions, want.instructions
                ));
            }
            if cost.allocations != want.allocations {
                lines.push(format!("{name}: {} allocations instead of {}", cost.allocations, want.allocations));
            }
        }
        lines
    }
}

#[test]
fn own_instructions_are_told_from_those_of_others() {
    let text = "version: 1\nevents: Ir\n\nob=(1) /target/deps/bench-1\nfl=(1) a.rs\nfn=(1) measured\n10 5\n+2 7\n\
                cob=(2) /lib/libc.so.6\ncfn=(2) malloc\ncalls=3 0\n11 900\n* 1\n\
                fn=(3) other\n7 20\ncob=(2)\ncfn=(2)\ncalls=2 0\n7 600\ncfn=(4) same object\ncalls=1 0\n8 50\n\n\
                ob=(2)\nfn=(2)\n1 1500\ncfn=(2)\ncalls=9 0\n1 7\n\nob=(1)\nfn=(1)\n12 4\ntotals: 9999\n";
    assert_eq!(own_instructions(text, "/bench-1"), 5 + 7 + 1 + 20 + 4);
    assert_eq!(own_instructions(text, "/libc.so.6"), 1500);
}

#[test]
fn a_table_is_read_as_it_is_written_and_tells_what_differs() {
    let cost = |instructions, allocations| Cost { instructions, allocations };
    let table = |rows: &[(&str, Cost)]| {
        let rows = rows.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect();
        Table { with: "rustc 1, avx".to_owned(), rows }
    };
    let want =
        table(&[("json: parse 150,000 FP32", cost(10_000, 2)), ("http1: head", cost(100, 0)), ("gone", cost(1, 0))]);
    assert_eq!(Table::parse(&want.text()), want);
    let counted =
        table(&[("json: parse 150,000 FP32", cost(10_300, 2)), ("http1: head", cost(97, 0)), ("gone", cost(1, 0))]);
    assert!(want.differences(&counted).is_empty(), "three percent are allowed");
    let counted =
        table(&[("json: parse 150,000 FP32", cost(10_301, 3)), ("http1: head", cost(96, 0)), ("new", cost(1, 0))]);
    assert_eq!(
        want.differences(&counted),
        [
            "gone: is in the table and was not counted",
            "json: parse 150,000 FP32: 10301 instructions, +3.0 % of 10000",
            "json: parse 150,000 FP32: 3 allocations instead of 2",
            "http1: head: 96 instructions, -4.0 % of 100",
            "new: is not in the table",
        ]
    );
}

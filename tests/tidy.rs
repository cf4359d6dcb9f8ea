//! The house rules, checked on the source: which layer may import which, how long files and
//! functions may be, what must be documented, what must never be there.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test waits and fails by panicking"
)]

#[path = "tidy/arrows.rs"]
mod arrows;
#[path = "tidy/comparisons.rs"]
mod comparisons;
#[path = "tidy/plots.rs"]
mod plots;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::source::{collect, folders, sources};

/// Allowed imports of each room of the crate, itself always included. Complete: a new folder needs a row.
const LAYERS: &[(&str, &[&str])] = &[
    // 0 ground
    ("time", &[]),
    ("limits", &[]),
    // Notes of the threads' runs, for a signal handler.
    ("crash", &["limits"]),
    ("error", &[]),
    ("budget", &["error"]),
    ("pressure", &["limits", "time"]),
    ("tensor", &["limits"]),
    ("metrics", &["error", "limits", "pressure", "time"]),
    ("policy", &["limits"]),
    // 1 formats and the catalogue
    ("wire", &["limits", "tensor"]),
    // Work before and behind models.
    ("steps", &["error", "limits", "tensor", "wire"]),
    // Folders of the Hugging Face hub as configurations and steps.
    ("hub", &["error", "limits", "tensor", "wire"]),
    ("model", &["error", "hub", "limits", "steps", "tensor", "wire"]),
    // Graphs of text encoders.
    ("transformer", &["error", "model", "wire"]),
    // Records of requests.
    ("trace", &["error", "limits", "model", "tensor", "time", "wire"]),
    // 2 machines
    ("connection", &["budget", "limits", "policy", "time", "wire"]),
    ("protocol", &["budget", "error", "limits", "metrics", "model", "policy", "tensor", "time", "trace", "wire"]),
    ("scheduler", &["limits", "policy", "time"]),
    ("backend", &["error", "limits", "metrics", "model", "scheduler", "steps", "tensor", "time", "trace"]),
    // Models are run in this process or in others: only the program chooses between the two.
    ("engines", &["backend", "error", "limits", "model", "tensor", "time"]),
    ("process", &["backend", "crash", "error", "limits", "metrics", "model", "tensor", "time", "trace"]),
    // Settings of the server and of the load generator.
    ("flags", &["wire"]),
    ("settings", &["flags", "limits", "policy"]),
    // 3 edge, by the thread that owns what is in it
    ("log", &["limits", "settings"]),
    ("runtime", &["limits", "time"]),
    // Shards and workers.
    (
        "queue",
        &["backend", "crash", "error", "limits", "metrics", "model", "policy", "scheduler", "tensor", "time", "trace"],
    ),
    // One pinned core.
    (
        "shard",
        &[
            "backend",
            "budget",
            "connection",
            "error",
            "limits",
            "log",
            "metrics",
            "model",
            "policy",
            "pressure",
            "protocol",
            "queue",
            "runtime",
            "scheduler",
            "tensor",
            "time",
            "trace",
            "wire",
        ],
    ),
    // Beside the server: it measures any server.
    ("loadgen", &["budget", "connection", "error", "flags", "limits", "metrics", "protocol", "tensor", "time", "wire"]),
    // 4 program
    // The control thread and those that load for it.
    (
        "control",
        &[
            "backend",
            "connection",
            "crash",
            "engines",
            "process",
            "settings",
            "error",
            "limits",
            "log",
            "metrics",
            "model",
            "policy",
            "pressure",
            "protocol",
            "queue",
            "runtime",
            "scheduler",
            "shard",
            "tensor",
            "time",
            "trace",
            "transformer",
            "wire",
            "steps",
            "hub",
        ],
    ),
    // Commands that ask a server.
    ("client", &["limits", "loadgen", "settings", "steps", "tensor", "time", "wire"]),
    ("cli", &["client", "flags", "loadgen", "model", "settings", "steps"]),
    (
        "server",
        &[
            "settings", "control", "crash", "error", "limits", "log", "metrics", "model", "runtime", "shard", "time",
            "wire",
        ],
    ),
    ("main", &["cli", "loadgen", "log", "runtime", "server"]),
    ("lib", &["budget", "crash", "error", "limits", "metrics", "policy", "pressure", "tensor", "time"]),
];

/// Words that only some parts may use.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("glommio::", &["runtime"]),
    ("io_uring::", &["runtime"]),
    ("h2::", &[]),
    ("object_store::", &[]),
    ("tokio::", &[]),
    ("ort::", &["engines"]),
    ("rten::", &["backend", "engines"]),
    ("cudarc", &["backend"]),
    ("std::fs", &["cli", "client", "control", "loadgen", "log"]),
    ("regex_lite::", &["policy"]),
    ("rustls::", &["connection"]),
    ("sha2::", &["control", "protocol"]),
    ("zstd_safe::", &["wire"]),
    ("clap::", &["cli", "client", "flags", "settings", "loadgen"]),
];

/// The threads of stores, in builds that have them, and code that only they run: the only tokio of the program.
const STORE_FILES: &[&str] = &[
    "src/control/repository/stores/client.rs",
    "src/control/repository/stores/connector.rs",
    "src/control/repository/stores/fetch.rs",
    "src/control/repository/stores/thread.rs",
];

/// The files outside `control` that read a model's file, or ask for its size, or run it: Python models need an
/// interpreter, which is searched or unpacked, and processes, which are in `/proc`.
const FILE_READERS: &[&str] = &[
    "crates/engines/src/onnxruntime/mod.rs",
    "crates/engines/src/onnxruntime/weights.rs",
    "crates/engines/src/openvino/mod.rs",
    "crates/engines/src/pytorch/mod.rs",
    "crates/engines/src/rten/mod.rs",
    "crates/engines/src/tensorflow/mod.rs",
    "crates/engines/src/trees/mod.rs",
    "crates/process/src/isolation/run_limit.rs",
    "crates/process/src/private_directory.rs",
    "crates/process/src/python/archive.rs",
    "crates/process/src/python/environment.rs",
    "crates/process/src/python/process.rs",
    "crates/process/src/python/spawn.rs",
    "crates/process/src/python/unpack.rs",
    "crates/process/src/triton/library.rs",
];

/// The files that may hold `unsafe`, each for a reason that stands beside it.
const UNSAFE_FILES: &[&str] = &[
    "crates/backend/src/gpu/blas.rs",
    "crates/backend/src/gpu/cuda.rs",
    "crates/backend/src/gpu/driver.rs",
    "crates/backend/src/gpu/fake.rs",
    "crates/backend/src/gpu/memory.rs",
    "crates/backend/src/gpu/nvml.rs",
    "crates/engines/src/c_library.rs",
    "crates/engines/src/gpu/slot.rs",
    "crates/engines/src/onnxruntime/program.rs",
    "crates/engines/src/onnxruntime/strings.rs",
    "crates/engines/src/openvino/library.rs",
    "crates/engines/src/pytorch/library.rs",
    "crates/engines/src/tensorflow/library.rs",
    "crates/process/src/python/child.rs",
    "crates/process/src/python/region.rs",
    "crates/process/src/triton/callback.rs",
    "crates/process/src/triton/library.rs",
    "crates/process/src/triton/memory.rs",
    "crates/process/src/triton/object.rs",
    "src/control/machine/process_memory.rs",
    "crates/base/src/crash/signal.rs",
    "src/main.rs",
    "src/runtime/socket.rs",
    "src/runtime/ring/buffers.rs",
    "src/runtime/ring/operation.rs",
    "src/runtime/ring/uring.rs",
];

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// Functions that only list the fields of a struct, one a line, and grow with it.
const FUNCTIONS_OF_FIELDS: &[(&str, &str)] = &[("crates/settings/src/values.rs", "default")];

/// The parts of the crate that code names: `crate::wire::…` and `use crate::{error, wire}`.
fn imports(code: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for found in code.split("crate::").skip(1) {
        let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        if let Some(list) = found.strip_prefix('{') {
            let list = list.split('}').next().unwrap_or_default();
            parts.extend(list.split(',').map(|item| word(item.trim())));
        } else {
            parts.push(word(found));
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[test]
fn layers_import_only_what_lies_below_them() {
    let mut faults = Vec::new();
    for source in sources() {
        let row = LAYERS.iter().find(|(part, _)| *part == source.room);
        let Some((_, allowed)) = row else { panic!("{} has no row in the table of layers", source.name) };
        for import in imports(source.code()) {
            if import != source.room && !allowed.contains(&import.as_str()) && !source.is_test_only() {
                faults.push(format!("{} imports {import}", source.name));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn an_import_is_found_in_each_of_its_forms() {
    let got = imports("use crate::wire::json;\nuse crate::{error, model};\nlet a = crate::shard::now();");
    assert_eq!(got, ["wire", "error", "model", "shard"]);
}

#[test]
fn no_circle_of_imports_at_any_level() {
    let sources = sources();
    let arrows = arrows::Tree::new(&sources).arrows(&sources);
    assert!(arrows.len() > 500, "the arrows were found");
    let circles = arrows::circles(&arrows);
    assert!(circles.is_empty(), "{circles:#?}");
}

/// Types of one thread (`Rc`, `RefCell`, `Cell`) and locks, with the rooms whose owner allows them: a shard's state is
/// one thread's; threads meet in `queue`, and at a device.
const OWNED_BY_THREADS: &[(&[&str], &[&str])] = &[
    (&["Rc<", "RefCell<", "Cell<", "Rc::"], &["runtime", "shard"]),
    (&["Mutex<", "RwLock<", "MutexGuard<"], &["queue", "backend", "engines", "process"]),
];

/// Exceptions to it, each with its reason.
const OWNED_OTHERWISE: &[(&str, &str)] = &[
    ("crates/base/src/budget.rs", "a request holds a part of the budget of its shard"),
    ("crates/connection/src/http1/mod.rs", "hands the budget of its shard on"),
    ("crates/connection/src/http2/mod.rs", "hands the budget of its shard on"),
    ("crates/connection/src/http2/stream.rs", "a count that only tests have"),
    ("src/control/serving/threads.rs", "a signal that one thread sends once: it is moved there, never shared"),
    ("src/log/thread.rs", "the last lines: the log's thread may wait for who copies them, and shards only try it"),
    ("crates/queue/src/deferred_wakes.rs", "the queues that one shard wakes at the end of its turn"),
    ("crates/queue/src/request_slots.rs", "the requests of one shard"),
    ("crates/queue/src/sync/checked.rs", "the fault that a run of the model check plants"),
    ("crates/backend/src/lib.rs", "whom a thread has answered within a batch, to wake each once"),
    ("crates/backend/src/gpu/cuda.rs", "which context is current is a thread's own"),
];

#[test]
fn state_of_one_thread_and_locks_stay_in_the_rooms_of_their_owner() {
    for source in sources().iter().filter(|source| !source.is_test_only()) {
        for (words, rooms) in OWNED_BY_THREADS {
            let said = source.lines().find(|line| words.iter().any(|word| says_word(line, word)));
            let may =
                rooms.contains(&source.room.as_str()) || OWNED_OTHERWISE.iter().any(|(name, _)| *name == source.name);
            assert!(said.is_none() || may, "{}: {said:?} belongs to {rooms:?}", source.name);
        }
    }
}

/// Type names with several meanings, each with its reason.
const NAMES_TWICE: &[(&str, &str)] =
    &[("WakeFile", "under loom the same code sleeps on a stand-in, which has the name of its original")];

#[test]
fn a_type_name_stands_for_one_thing() {
    let mut declared = declared_types();
    declared.retain(|name, files| files.len() > 1 && !NAMES_TWICE.iter().any(|(known, _)| known == name));
    assert!(declared.is_empty(), "{declared:#?}");
}

/// The types of the crate outside its tests, and the files that declare them.
fn declared_types() -> BTreeMap<String, BTreeSet<String>> {
    let mut declared: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources().iter().filter(|source| !source.name.contains("/tests")) {
        for line in source.code().lines() {
            if let Some(name) = declared_type(line) {
                declared.entry(name.to_owned()).or_default().insert(source.name.clone());
            }
        }
    }
    assert!(declared.len() > 500, "the types were found");
    declared
}

/// The type that a line declares: not an associated type, which has another's name.
fn declared_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let visible = code.strip_prefix("pub").map_or(code, |rest| {
        rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")).map_or(rest.trim_start(), |(_, rest)| rest)
    });
    let (keyword, rest) = visible.split_once(' ')?;
    let is_type = match keyword {
        "enum" | "struct" | "trait" | "union" => true,
        "type" => code.len() == line.len(),
        _ => false,
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (is_type && end > 0).then_some(&rest[..end])
}

#[test]
fn a_declaration_is_told_from_an_associated_type() {
    assert_eq!(declared_type("pub(super) struct A<'a> {"), Some("A"));
    assert_eq!(declared_type("type B = u8;"), Some("B"));
    assert_eq!(declared_type("    type Output = u8;"), None);
    assert_eq!(declared_type("pub const C: u8 = 1;"), None);
}

#[test]
fn a_type_in_the_glossary_is_declared() {
    let declared = declared_types();
    let text = document("glossary.md");
    let names = type_names(&text);
    assert!(names.len() > 100, "the names were found");
    let stale: Vec<_> = names.into_iter().filter(|name| !declared.contains_key(*name)).collect();
    assert!(stale.is_empty(), "docs/glossary.md explains types that are not declared: {stale:?}");
}

#[test]
fn every_room_is_on_the_page_of_the_architecture() {
    let text = document("architecture.md");
    let rooms: BTreeSet<String> =
        sources().into_iter().map(|source| source.room).filter(|room| room != "lib").collect();
    assert!(rooms.len() > 15, "the rooms were found");
    let missing: Vec<_> = rooms.iter().filter(|room| !text.contains(&format!("`{room}`"))).collect();
    assert!(missing.is_empty(), "docs/architecture.md does not name {missing:?}");
}

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// The CamelCase names between backticks: neither constants nor paths.
fn type_names(text: &str) -> BTreeSet<&str> {
    let is_type = |name: &&str| {
        name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric())
            && name.contains(|letter: char| letter.is_ascii_lowercase())
    };
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(is_type).collect()
}

#[test]
fn a_type_name_is_told_from_other_words_between_backticks() {
    let text = "`Shard`, `LIMIT_MAX`, `queue::Entry`, Outside `src/` Between `TopK`\n`Tail` is `--a-flag`";
    assert_eq!(type_names(text).into_iter().collect::<Vec<_>>(), ["Shard", "Tail", "TopK"]);
}

#[test]
fn words_of_one_part_are_said_in_no_other() {
    for source in sources() {
        for (word, parts) in ONLY_IN {
            let is_said =
                source.code().lines().any(|line| !line.trim_start().starts_with("//") && says_word(line, word));
            let reads_files = *word == "std::fs" && FILE_READERS.contains(&source.name.as_str());
            let is_of_store =
                ["object_store::", "tokio::"].contains(word) && STORE_FILES.contains(&source.name.as_str());
            let may = parts.contains(&source.room.as_str()) || source.is_test_only() || reads_files || is_of_store;
            assert!(!is_said || may, "{} says {word}", source.name);
        }
    }
}

/// Returns true if a line says a word, and not another one with the same ending.
fn says_word(line: &str, word: &str) -> bool {
    let is_inner = |before: char| before.is_alphanumeric() || before == '_';
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(is_inner))
}

#[test]
fn a_word_is_not_found_at_the_end_of_another() {
    assert!(says_word("use ort::Session;", "ort::") && says_word("a(ort::b())", "ort::"));
    assert!(!says_word("use crate::loadgen::report::Load;", "ort::"));
}

#[test]
fn unsafe_stands_in_named_files_with_its_reason() {
    for source in sources() {
        let code = source.text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let count = code.filter(|line| line.contains("unsafe {") || line.contains("unsafe fn")).count();
        assert!(count == 0 || UNSAFE_FILES.contains(&source.name.as_str()), "{} has unsafe code", source.name);
        // A declaration states the duties of its callers.
        let reasons = source.text.matches("// SAFETY:").count() + source.text.matches("/// # Safety\n").count();
        assert!(reasons >= count, "{}: {count} unsafe blocks, {reasons} reasons", source.name);
    }
}

/// The reasons for `unsafe` in a file, each in one line.
fn safety_reasons(text: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some(begin) = line.strip_prefix("// SAFETY:") else { continue };
        let mut reason = begin.trim().to_owned();
        while let Some(more) = lines.peek().and_then(|line| line.strip_prefix("//")) {
            reason = format!("{reason} {}", more.trim());
            lines.next();
        }
        reasons.push(reason);
    }
    reasons
}

#[test]
fn the_page_of_unsafe_code_lists_every_reason() {
    let mut page = "# Unsafe code\n\n\
        Every block of `unsafe`, by the file that has it, with the reason that stands beside it. All other files have none, which\n\
        `cargo test --test tidy` holds, as it holds this page; `UPDATE_EXPECT=1 cargo test --test tidy` writes it anew.\n"
        .to_owned();
    for source in sources() {
        let reasons = safety_reasons(&source.text);
        if !reasons.is_empty() {
            page.push_str(&format!("\n## {}\n\n", source.name));
            reasons.iter().for_each(|reason| page.push_str(&format!("- {reason}\n")));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/unsafe.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let have = fs::read_to_string(&path).unwrap_or_default();
    assert!(have == page, "docs/unsafe.md is not what the source says: UPDATE_EXPECT=1 cargo test --test tidy");
}

#[test]
fn files_begin_with_what_they_are_and_stay_short() {
    for source in sources() {
        let says = source.text.starts_with("//! ") || source.name.ends_with("tests.rs");
        assert!(says, "{} does not say what it is", source.name);
        let lines = source.code().lines().count();
        assert!(lines <= FILE_LINES_MAX || source.is_test_only(), "{} has {lines} lines", source.name);
    }
}

#[test]
fn functions_fit_on_a_screen() {
    let mut faults = Vec::new();
    for source in sources() {
        for (name, lines) in functions(&source.text) {
            let lists_fields = FUNCTIONS_OF_FIELDS.contains(&(source.name.as_str(), name.as_str()));
            if lines > FUNCTION_LINES_MAX && !lists_fields {
                faults.push(format!("{}: {name} has {lines} lines", source.name));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The functions of a formatted file and their lines: each ends at a brace as deep as it began.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let depth = line.len() - code.len();
        let before = code.split("fn ").next().unwrap_or_default();
        let is_function = code.contains("fn ")
            && before
                .split_whitespace()
                .all(|word| word.starts_with("pub") || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word));
        if !is_function || code.starts_with("//") {
            continue;
        }
        let close = format!("{}}}", " ".repeat(depth));
        let end = lines[index..].iter().position(|line| **line == close || line.ends_with(';') && line.len() > depth);
        let name = code.split("fn ").nth(1).unwrap_or_default().split(['(', '<']).next().unwrap_or_default();
        let is_declared_only = lines[index..].iter().take_while(|line| !line.contains('{')).any(|l| l.ends_with(';'));
        if !is_declared_only && end.is_some() {
            let body = lines[index..].iter().position(|line| **line == close).unwrap_or(0);
            found.push((name.to_owned(), body + 1));
        }
    }
    found
}

#[test]
fn the_length_of_a_function_is_counted_from_its_head_to_its_brace() {
    let text =
        "fn a() {\n    b();\n}\n\nimpl X {\n    pub async fn c(\n        x: u8,\n    ) {\n        d();\n    }\n}\n";
    assert_eq!(functions(text), [("a".to_owned(), 3), ("c".to_owned(), 5)]);
}

#[test]
fn nothing_unfinished_is_left_lying() {
    // Composed here, so that this file does not find itself.
    let words =
        [concat!("dbg", "!("), concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("#[ign", "ore")];
    for source in sources() {
        for word in words {
            assert!(!source.text.contains(word), "{} says {word}", source.name);
        }
    }
}

#[test]
fn every_limit_says_why_and_is_used() {
    let sources = sources();
    for limits in sources.iter().filter(|source| source.room == "limits") {
        let lines: Vec<&str> = limits.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(name) = line.strip_prefix("pub const ").and_then(|rest| rest.split(':').next()) else { continue };
            assert!(lines[index - 1].starts_with("/// "), "{name} does not say why");
            let is_used = sources.iter().any(|source| source.room != "limits" && source.text.contains(name));
            assert!(is_used, "{name} bounds nothing");
        }
    }
}

#[test]
fn every_fuzz_target_is_replayed_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    folders().iter().for_each(|folder| collect(folder, &mut files));
    collect(&root.join("tests"), &mut files);
    files.retain(|file| !file.ends_with("tests/tidy.rs"));
    let all: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let targets: Vec<_> =
        fs::read_dir(root.join("fuzz/fuzz_targets")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(targets.len() >= 5, "{targets:?}");
    for target in targets {
        let name = target.file_stem().unwrap().to_str().unwrap().to_owned();
        let corpus = root.join("fuzz/corpus").join(&name);
        assert!(fs::read_dir(&corpus).unwrap().count() > 0, "{name} has no corpus");
        assert!(all.contains(&format!("fuzz/corpus/{name}")), "no test replays fuzz/corpus/{name}");
    }
}

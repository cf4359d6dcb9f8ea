//! Loads that crash their engine or never end: they fail alone, while the server goes on.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::onnxruntime::{assert_adds, compile, environment, flag, parameters, start};
use crate::support::folder::Folder;
use crate::support::onnx::builder::{FLOAT, INT64, Onnx};
use crate::support::server::Server;
use crate::support::{http, onnx, repository};

const EXPLICIT: &str = "--model-control-mode=explicit";
/// Mutated files for each engine; `DEUTERON_MUTANTS` for another number.
const MUTANTS: usize = 200;
/// Loads at a time.
const LOADERS: usize = 2;

fn load(server: &Server, model: &str) -> (u16, String) {
    let answer = http::post(server.http(), &format!("/v2/repository/models/{model}/load"), b"").unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

/// A repository with a model that the embedded engine adds with, and one for the stand-in of ONNX Runtime.
fn two_models() -> Folder {
    let folder = Folder::new("load-trials");
    let embedded = parameters(&[("engine", "embedded")]);
    repository::add(folder.path(), "good", &embedded, Some(&Onnx::addsub(FLOAT)));
    repository::add(folder.path(), "bad", "", Some(&Onnx::addsub(FLOAT)));
    folder
}

/// The processes whose parent is the server.
fn children(server: &Server) -> usize {
    let parent = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // `PID (NAME) STATE PARENT …`
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(parent).filter(|parent| *parent == server.id()).count()
}

#[test]
fn an_engine_that_crashes_on_a_file_fails_that_load_alone() {
    let folder = two_models();
    let crash = "#include <stdlib.h>\n#include <stdio.h>\n\
                 const void *OrtGetApiBase(void) { fprintf(stderr, \"out of luck\\n\"); abort(); }\n";
    let library = compile(&folder, crash);
    let server = start(&folder, &[EXPLICIT], &[("ORT_DYLIB_PATH", &library)]);
    for _ in 0..2 {
        let (status, text) = load(&server, "bad");
        assert_eq!(status, 400, "{text}");
        let want = "Internal: unable to load model 'bad': the engine ended with signal 6 (SIGABRT) on this file, in a \
                    process of its own that tried it (--trial-loads) with at most ";
        assert!(text.contains(want) && text.contains("(--load-memory-bytes-max)"), "{text}");
        assert_eq!(load(&server, "good"), (200, String::new()));
        assert_adds(&server, "good");
    }
    let log = server.log();
    assert!(log.contains("last output of the engine that loaded 'bad' version 1: out of luck"), "{log}");
    assert_eq!(children(&server), 0);
}

#[test]
fn a_load_that_never_ends_is_given_up_and_keeps_no_other_waiting() {
    let folder = two_models();
    let library = compile(&folder, "const void *OrtGetApiBase(void) { volatile int i = 0; for (;;) i = i; }\n");
    let flags = [EXPLICIT, "--load-timeout-secs=6", "--model-load-thread-count=1"];
    let mut server = start(&folder, &flags, &[("ORT_DYLIB_PATH", &library)]);
    thread::scope(|scope| {
        let began = Instant::now();
        let bad = scope.spawn(|| load(&server, "bad"));
        while children(&server) == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(load(&server, "good"), (200, String::new()));
        let took = began.elapsed();
        assert!(!bad.is_finished(), "the good one waited {took:?}");
        assert_adds(&server, "good");
        let (status, text) = bad.join().unwrap();
        assert_eq!(status, 400, "{text}");
        let want = "unable to load model 'bad': its load took longer than 6s (--load-timeout-secs), in a process of its own \
                    that tried it (--trial-loads), and was given up";
        assert!(text.contains(want), "{text}");
    });
    assert_eq!(children(&server), 0);
    // A model that is still tried ends with the server.
    thread::scope(|scope| {
        let last = scope.spawn(|| http::post(server.http(), "/v2/repository/models/bad/load", b""));
        while children(&server) == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        server.signal("TERM");
        drop(last.join());
    });
    server.stop();
}

#[test]
fn a_file_of_flags_that_has_changed_counts_for_no_load() {
    let folder = two_models();
    let config = folder.path().join("server.toml");
    fs::write(&config, "model-control-mode = \"explicit\"\n").unwrap();
    let flag = format!("--config={}", config.display());
    let server = Server::deuteron(folder.path(), &[&flag, "--trial-loads=all", "--exit-on-error=false"]);
    fs::write(&config, "model-control-mod = 1\n").unwrap();
    assert_eq!(load(&server, "good"), (200, String::new()));
    assert_adds(&server, "good");
}

#[test]
fn loads_at_the_start_are_tried_where_one_that_fails_does_not_end_the_server() {
    let folder = two_models();
    let library = compile(&folder, "#include <stdlib.h>\nconst void *OrtGetApiBase(void) { abort(); }\n");
    let flags = ["--exit-on-error=false", "--strict-readiness=false"];
    let server = start(&folder, &flags, &[("ORT_DYLIB_PATH", &library)]);
    assert_adds(&server, "good");
    let log = server.log();
    assert!(log.contains("failed to load 'bad': unable to load model 'bad': the engine ended with signal 6"), "{log}");
}

#[test]
fn a_load_that_needs_more_memory_than_it_may_have_fails() {
    let folder = Folder::new("load-trials");
    let weights = vec![0_u8; 64 * 1024 * 1024];
    let onnx = Onnx::default().constant("w", FLOAT, &[1, 1 << 24], &weights).node("Add", &["x", "w"], &["y"], &[]);
    let onnx = onnx.input("x", FLOAT, &[1, 1]).output("y", FLOAT, &[1, 1 << 24]).into_bytes();
    repository::add(folder.path(), "large", "", Some(&onnx));
    repository::add(folder.path(), "small", "", Some(&Onnx::addsub(FLOAT)));
    let server = Server::deuteron(folder.path(), &[EXPLICIT, "--load-memory-bytes-max=67108864"]);
    let (status, text) = load(&server, "large");
    assert!(status == 400 && text.contains("load failed for model 'large'"), "{status} {text}");
    assert_eq!(load(&server, "small"), (200, String::new()));
    assert_adds(&server, "small");
}

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }
}

/// A field of a protobuf message.
enum Field {
    Varint(u64, u64),
    Fixed(u64, Vec<u8>),
    Bytes(u64, Vec<u8>),
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if *first < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The fields of a message; `None` if the bytes are not a message.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        if key >> 3 == 0 || key >> 3 > 64 {
            return None;
        }
        let size = match key & 7 {
            0 => {
                fields.push(Field::Varint(key, take_varint(&mut bytes)?));
                continue;
            }
            1 => 8,
            2 => usize::try_from(take_varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (field, rest) = bytes.split_at_checked(size)?;
        bytes = rest;
        fields.push(if key & 7 == 2 { Field::Bytes(key, field.to_vec()) } else { Field::Fixed(key, field.to_vec()) });
    }
    Some(fields)
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        match field {
            Field::Varint(key, value) => {
                put_varint(*key, &mut out);
                put_varint(*value, &mut out);
            }
            Field::Fixed(key, bytes) => {
                put_varint(*key, &mut out);
                out.extend_from_slice(bytes);
            }
            Field::Bytes(key, bytes) => {
                put_varint(*key, &mut out);
                put_varint(bytes.len() as u64, &mut out);
                out.extend_from_slice(bytes);
            }
        }
    }
    out
}

/// Operators, and names that graphs have: replacements for a text.
const WORDS: [&str; 24] = [
    "Add",
    "Sub",
    "MatMul",
    "Reshape",
    "Gather",
    "Tile",
    "Expand",
    "ConstantOfShape",
    "Range",
    "Slice",
    "Concat",
    "Loop",
    "Transpose",
    "Conv",
    "Pad",
    "Softmax",
    "Resize",
    "Split",
    "CumSum",
    "NonZero",
    "OneHot",
    "x",
    "y",
    "axis",
];

/// One change to a message, at any depth: it stays a message, so that most of it reaches the engine.
fn mutate_message(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut fields = fields(bytes)?;
    let index = random.below(fields.len());
    let kind = random.below(16);
    match fields.get_mut(index)? {
        Field::Bytes(_, inner) if kind > 2 && inner.len() > 3 => {
            *inner = mutate_message(inner, random).unwrap_or_else(|| mutate_bytes(inner, random));
        }
        _ if kind == 0 => drop(fields.remove(index)),
        _ if kind == 1 => {
            let other = random.below(fields.len());
            fields.swap(index, other);
        }
        Field::Varint(_, value) => {
            let some = [0, 1, 2, 7, 127, 1 << 31, (1 << 32) + 1, u64::MAX, u64::MAX - 1, i64::MAX.cast_unsigned()];
            *value = if kind < 8 { some[random.below(some.len())] } else { value.wrapping_add(1) };
        }
        Field::Fixed(_, inner) | Field::Bytes(_, inner) => *inner = mutate_bytes(inner, random),
    }
    Some(encode(&fields))
}

/// A change to a text, or to the contents of a tensor.
fn mutate_bytes(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = random.below(bytes.len());
    match random.below(5) {
        0 => return WORDS[random.below(WORDS.len())].into(),
        1 => bytes.truncate(at),
        2 => bytes.extend_from_within(at..),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            }
        }
    }
    bytes
}

/// A file with a few changes: most leave it an ONNX file, some do not.
fn mutate(file: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..=random.below(3) {
        bytes = match random.below(8) {
            0 => mutate_bytes(&bytes, random),
            _ => mutate_message(&bytes, random).unwrap_or(bytes),
        };
    }
    bytes
}

/// Small models; some compute with constants, which engines do when they load.
fn seeds() -> Vec<Vec<u8>> {
    let ints = |values: &[i64]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let floats = [1_f32; 9].map(f32::to_le_bytes).concat();
    let vector = |onnx: Onnx| onnx.input("x", FLOAT, &[-1, 4]).output("y", FLOAT, &[-1, 4]).into_bytes();
    let tile = Onnx::default()
        .constant("row", FLOAT, &[1, 1], &1_f32.to_le_bytes())
        .constant("repeats", INT64, &[2], &ints(&[1, 4]))
        .node("Tile", &["row", "repeats"], &["tiled"], &[])
        .node("Add", &["x", "tiled"], &["y"], &[]);
    let filled = Onnx::default()
        .constant("shape", INT64, &[2], &ints(&[1, 4]))
        .node("ConstantOfShape", &["shape"], &["filled"], &[])
        .node("Sub", &["x", "filled"], &["y"], &[]);
    let reshaped = Onnx::default()
        .constant("shape", INT64, &[2], &ints(&[-1, 4]))
        .node("Reshape", &["x", "shape"], &["same"], &[])
        .node("Softmax", &["same"], &["y"], &[("axis", 1)]);
    let conv = Onnx::default()
        .constant("w", FLOAT, &[1, 1, 3, 3], &floats)
        .node("Conv", &["x", "w"], &["c"], &[("group", 1)])
        .node("Relu", &["c"], &["y"], &[])
        .input("x", FLOAT, &[-1, 1, 4, 4])
        .output("y", FLOAT, &[-1, 1, 2, 2]);
    vec![
        Onnx::addsub(FLOAT),
        onnx::add_default(),
        onnx::adding_up_to(3),
        onnx::cubic(),
        onnx::lookup(),
        onnx::running_segments(),
        conv.into_bytes(),
        vector(filled),
        vector(reshaped),
        vector(tile),
    ]
}

/// Loads mutants into one server, which must stay up; returns how many of them were refused.
fn load_mutants(start: impl FnOnce(&Path, &[&str]) -> Server) -> usize {
    let count = std::env::var("DEUTERON_MUTANTS").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTANTS);
    let folder = Folder::new("mutants");
    repository::add(folder.path(), "good", "", Some(&Onnx::addsub(FLOAT)));
    (0..LOADERS).for_each(|loader| repository::add(folder.path(), &format!("m{loader}"), "", None));
    let mut server = start(folder.path(), &[EXPLICIT, "--load-timeout-secs=5", "--load-model=good"]);
    let (refused, next, seeds) = (AtomicUsize::new(0), AtomicUsize::new(0), seeds());
    thread::scope(|scope| {
        for loader in 0..LOADERS {
            let (server, folder, refused, next, seeds) = (&server, &folder, &refused, &next, &seeds);
            scope.spawn(move || {
                let name = format!("m{loader}");
                let file = folder.path().join(&name).join("1/model.onnx");
                loop {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    if index >= count {
                        return;
                    }
                    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (index as u64 + 1));
                    for _ in 0..8 {
                        random.below(1);
                    }
                    let seed = &seeds[random.below(seeds.len())];
                    fs::write(&file, mutate(seed, &mut random)).unwrap();
                    let (status, text) = load(server, &name);
                    assert!(status == 200 || text.contains("fail"), "mutant {index}: {status} {text}");
                    refused.fetch_add(usize::from(status != 200), Ordering::SeqCst);
                }
            });
        }
    });
    assert!(server.is_running(), "{}", server.log());
    assert_adds(&server, "good");
    assert_eq!(load(&server, "good"), (200, String::new()), "another load");
    let refused = refused.into_inner();
    assert!(refused > count / 10 && refused < count * 9 / 10, "{refused} of {count} were refused");
    let log = server.log();
    let crashes = log.matches("the engine ended with signal").count();
    println!("{refused} of {count} mutants were refused, {crashes} lines of the log tell of engines that crashed");
    refused
}

#[test]
fn mutants_leave_a_server_with_the_embedded_engine_up() {
    load_mutants(Server::deuteron);
}

#[test]
fn mutants_leave_a_server_with_onnx_runtime_up() {
    let Some(environment) = environment() else { return };
    let library = flag(environment);
    load_mutants(|folder, flags| Server::deuteron(folder, &[&[library.as_str()], flags].concat()));
}

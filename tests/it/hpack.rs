//! HPACK against another implementation, PyPI's `hpack`, both ways, over tables that fill and change.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::python::Environment;
use deuteron::wire::hpack::decoder::Decoder;
use deuteron::wire::hpack::encoder::{Encoder, Indexing};

type Fields = Vec<(String, String)>;

/// Bytes as text, one character each.
fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|character| u32::from(character) as u8).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    fn fields(&mut self) -> Fields {
        const NAMES: [&str; 9] =
            [":method", ":path", ":status", "content-type", "grpc-timeout", "x-a", "x-b", "accept", "user-agent"];
        let known = ["GET", "/", "200", "application/grpc", "20m", "1", "", "gzip, deflate", "grpc-python/1.80"];
        let mut fields = Fields::new();
        for _ in 0..self.below(12) {
            let name = NAMES[self.below(9) as usize].to_owned();
            let value = match self.below(3) {
                0 => known[self.below(9) as usize].to_owned(),
                1 => format!("{}", self.below(30)),
                _ => (0..self.below(90)).map(|_| char::from(self.below(256) as u8)).collect(),
            };
            fields.push((name, value));
        }
        fields
    }
}

/// The other implementation's answer to lines.
fn ask(environment: &Environment, mode: &str, lines: &[String]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http2/hpack_peer.py");
    let mut command = Command::new(environment.python());
    command.arg(script).arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let all = lines.join("\n");
    let writer = std::thread::spawn(move || input.write_all(all.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{mode}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn both_implementations_read_what_the_other_writes() {
    let Some(environment) = Environment::shared() else { return };
    let mut random = Random(7541);
    let messages: Vec<Fields> = (0..3_000).map(|_| random.fields()).collect();

    // Lines encoded by the other implementation, decoded by ours; the table's size changes now and then.
    let mut lines = Vec::new();
    for message in &messages {
        if random.below(40) == 0 {
            lines.push(format!("size {}", random.below(4_097)));
        }
        let entries: Vec<_> = message.iter().map(|(name, value)| (name, value, random.below(8) == 0)).collect();
        lines.push(serde_json::to_string(&entries).unwrap());
    }
    let blocks = ask(&environment, "encode", &lines);
    assert_eq!(blocks.len(), messages.len());
    let mut decoder = Decoder::default();
    for (index, (block, message)) in blocks.iter().zip(&messages).enumerate() {
        let block: Vec<u8> =
            (0..block.len() / 2).map(|at| u8::from_str_radix(&block[2 * at..2 * at + 2], 16).unwrap()).collect();
        let mut got = Fields::new();
        decoder.decode(&block, |field| got.push((text(field.name_text), text(field.value)))).unwrap();
        assert_eq!(got, *message, "message {index}");
    }

    // Lines encoded by ours, decoded by the other.
    let mut encoder = Encoder::default();
    let mut lines = Vec::new();
    for message in &messages {
        if random.below(40) == 0 {
            encoder.set_table_size_max(random.below(4_097) as usize);
        }
        let mut block = Vec::new();
        encoder.begin_block(&mut block);
        for (name, value) in message {
            let indexing = if random.below(2) == 0 { Indexing::Insert } else { Indexing::Without };
            encoder.encode(name.as_bytes(), &bytes(value), indexing, &mut block);
        }
        lines.push(block.iter().map(|byte| format!("{byte:02x}")).collect());
    }
    let read = ask(&environment, "decode", &lines);
    assert_eq!(read.len(), messages.len());
    for (index, (line, message)) in read.iter().zip(&messages).enumerate() {
        let got: Fields = serde_json::from_str(line).unwrap();
        assert_eq!(got, *message, "message {index}");
    }
}

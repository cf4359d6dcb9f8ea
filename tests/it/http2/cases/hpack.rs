//! RFC 7541.

use deuteron::wire::hpack::decoder::Decoder;

use super::Table;
use crate::http2::case::{COMPRESSION, Seen, Want, block, body, head, request};
use crate::http2::frame::{settings, string};

pub fn add(table: &mut Table) {
    faults(table);
    forms(table);
    tables(table);
    responses(table);
}

/// The request's block with more bytes behind.
fn more(bytes: &[u8]) -> Vec<u8> {
    [&block(&[])[..], bytes].concat()
}

fn faults(table: &mut Table) {
    let literal = |value: &[u8]| [&[0, 1, b'x'][..], value].concat();
    for (clause, name, bytes) in [
        ("7541 §6.1", "index 0", vec![0x80]),
        ("7541 §2.3.3", "an index beyond both tables", vec![0xbe]),
        ("7541 §2.3.3", "an index far beyond both tables", vec![0xff, 0x80, 0x80, 0x01]),
        ("7541 §2.3.3", "a literal whose name's index is beyond both tables", vec![0x7e, 0x01, b'a']),
        (
            "7541 §5.1",
            "an integer without an end",
            vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ),
        ("7541 §5.1", "an integer that is cut", vec![0xff]),
        ("7541 §5.2", "a string that is cut", literal(&[5, b'a'])),
        ("7541 §5.2", "a string of 2^28 bytes", literal(&[0x7f, 0x81, 0xff, 0xff, 0x7f, b'a'])),
        ("7541 §5.2", "the Huffman code of the end inside a string", literal(&[0x84, 0xff, 0xff, 0xff, 0xff])),
        ("7541 §5.2", "padding of more than seven bits", literal(&[0x82, 0x1f, 0xff])),
        ("7541 §5.2", "padding of zeros", literal(&[0x81, 0x18])),
        ("7541 §6.3", "a table larger than the setting", vec![0x3f, 0xe2, 0xff, 0x7f]),
        ("7541 §4.2", "the size of the table behind a field", vec![0x20]),
    ] {
        let size_first = bytes.len() == 4 && bytes[0] == 0x3f;
        let fields = if size_first { [&bytes[..], &block(&[])].concat() } else { more(&bytes) };
        table.add(clause, name, vec![head(1, &fields)], Want::Connection(&[COMPRESSION]));
    }
}

fn forms(table: &mut Table) {
    let mut good = |clause, name: &str, bytes: Vec<u8>| {
        table.add(clause, name, vec![[head(1, &bytes), body(1)].concat()], Want::Answers(vec![1]));
    };
    let literal = |pattern: u8| [&[pattern][..], &string(b"x-name"), &string(b"value")].concat();
    good("7541 §6.2.1", "a literal that goes into the table", more(&literal(0x40)));
    good("7541 §6.2.2", "a literal that does not", more(&literal(0)));
    good("7541 §6.2.3", "a literal that never does", more(&literal(0x10)));
    good("7541 §6.2.2", "a literal whose name is indexed", more(&[0x0f, 0x10, 1, b'a']));
    good("7541 §5.2", "a string in the Huffman code", more(&[0, 1, b'x', 0x81, 0x1f]));
    good("7541 §5.2", "a string of no bytes in the Huffman code", more(&[0, 1, b'x', 0x80]));
    good(
        "7541 §5.1",
        "an integer in more bytes than it needs",
        more(&[0, 0x7f, 0x80, 0x00].iter().copied().chain([b'n'; 127]).chain([0]).collect::<Vec<_>>()),
    );
    good(
        "7541 §6.3",
        "the size of the table twice before the fields",
        [vec![0x20, 0x3f, 0xe1, 0x1f], block(&[])].concat(),
    );
    good("7541 §6.1", "fields of the static table", {
        let path = [&[0x04][..], &string(b"/inference.GRPCInferenceService/ServerLive")].concat();
        let authority = [&[0x01][..], &string(b"localhost")].concat();
        let grpc = [&[0x0f, 0x10][..], &string(b"application/grpc")].concat();
        [&[0x83, 0x86][..], &path, &authority, &grpc, &crate::http2::frame::field(b"te", b"trailers")].concat()
    });
}

fn tables(table: &mut Table) {
    let insert = |name: &[u8], value: &[u8]| [&[0x40][..], &string(name), &string(value)].concat();
    let two = |first: Vec<u8>, second: Vec<u8>| {
        vec![[head(1, &more(&first)), body(1), head(3, &more(&second)), body(3)].concat()]
    };
    let x = insert(b"x-first", b"1");
    table.add(
        "7541 §2.3.2",
        "an entry is there for the next stream",
        two(x.clone(), vec![0xbe]),
        Want::Answers(vec![1, 3]),
    );
    let newest = two([insert(b"x-a", b"1"), insert(b"connection", b"x")].concat(), vec![0xbf]);
    // The first of them is malformed; 63 is the older entry, and well-formed.
    table.add("7541 §2.3.3", "the newest entry has the lowest index", newest, Want::Answers(vec![3]));
    let broken = Want::Connection(&[COMPRESSION]);
    let emptied = vec![[head(1, &more(&x)), body(1), head(3, &[&[0x20][..], &more(&[0xbe])].concat())].concat()];
    table.add("7541 §4.3", "a table of no size has no entries", emptied, broken.clone());
    let large = insert(b"x-large", &[b'v'; 5_000]);
    table.add(
        "7541 §4.4",
        "an entry larger than the table empties it",
        two([x.clone(), large.clone()].concat(), vec![0xbe]),
        broken.clone(),
    );
    table.add("7541 §4.4", "an entry larger than the table is no fault", two(large, vec![]), Want::Answers(vec![1, 3]));
    let fill: Vec<u8> = (0..3_u8).flat_map(|index| insert(b"x-fill", &[b'a' + index; 2_000])).collect();
    let old = vec![0xc0];
    table.add("7541 §4.4", "old entries leave a full table", two([x.clone(), fill.clone()].concat(), old), broken);
    table.add(
        "7541 §4.1",
        "entries that fit stay in a full table",
        two([x, fill].concat(), vec![0xbf, 0xbe]),
        Want::Answers(vec![1, 3]),
    );
    // 4.4: the name is that of an entry which leaves to make room.
    let named = [insert(b"x-named", &[b'v'; 4_000]), vec![0x7e], string(&[b'w'; 1_000])].concat();
    table.add("7541 §4.4", "a name of an entry that leaves for it", two(named, vec![0xbe]), Want::Answers(vec![1, 3]));
}

/// Decodes the server's field blocks, with a table of a given size.
fn decodes(seen: &Seen, streams: &[u32], is_size_told: bool) -> Result<(), String> {
    let mut decoder = Decoder::default();
    let blocks = seen.blocks();
    if is_size_told && blocks.first().is_none_or(|block| block.first().is_none_or(|byte| byte >> 5 != 1)) {
        return Err("the first block does not begin with the table's size".into());
    }
    for block in &blocks {
        let mut status = None;
        let outcome = decoder.decode(block, |field| {
            if field.name_text == b":status" {
                status = Some(field.value.to_vec());
            }
        });
        outcome.map_err(|error| error.to_string())?;
        if is_size_told && block.iter().any(|byte| (0xbe..=0xff).contains(byte)) && block.len() < 4 {
            return Err(format!("an entry of a table that has none: {block:?}"));
        }
    }
    if streams.iter().all(|stream| seen.is_answered(*stream)) { Ok(()) } else { Err("no answer".into()) }
}

fn responses(table: &mut Table) {
    let parts = || vec![request(1), [request(3), request(5)].concat()];
    table.add(
        "7541 §2.2",
        "the server's blocks decode in their order",
        parts(),
        Want::Check(|seen| decodes(seen, &[1, 3, 5], false)),
    );
    table.open(
        "7541 §4.2",
        "a table of no size is told and kept to",
        settings(&[(1, 0)]),
        parts(),
        Want::Check(|seen| decodes(seen, &[1, 3, 5], true)),
    );
    let parts = vec![request(1), [settings(&[(1, 0)]), settings(&[(1, 4_096)]), request(3)].concat(), request(5)];
    table.add(
        "7541 §4.2",
        "a table that was made smaller and larger is told so",
        parts,
        Want::Check(|seen| {
            let first = seen
                .frames
                .iter()
                .find(|(part, frame)| *part == 1 && frame.kind == 1)
                .map(|(_, frame)| frame.payload.clone());
            // An encoder that never put anything in may say the last size alone, or the least alone.
            match first {
                Some(block) if block.first().is_some_and(|byte| byte >> 5 == 1) => decodes(seen, &[1, 3, 5], false),
                other => Err(format!("{other:?}")),
            }
        }),
    );
}

//! The examples of RFC 7541 Appendix C byte for byte, and round trips.

use super::decoder::Decoder;
use super::encoder::{Encoder, Indexing};
use super::{DecodeError, TABLE_SIZE_MAX, huffman};

type Fields = Vec<(String, String)>;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    digits.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, DecodeError> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    decoder.decode(block, |field| fields.push((text(field.name_text), text(field.value))))?;
    Ok(fields)
}

fn lines(text: &str) -> Fields {
    let split = |line: &str| {
        let at = line[1..].find(": ").unwrap() + 1;
        (line[..at].to_owned(), line[at + 2..].to_owned())
    };
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(split).collect()
}

#[test]
fn the_single_fields_of_the_rfc_decode() {
    let check = |hex: &str, want: &str| {
        assert_eq!(decode(&mut Decoder::default(), &bytes(hex)), Ok(lines(want)), "{hex}");
    };
    // C.2.1 to C.2.4.
    check("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", "custom-key: custom-header");
    check("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path");
    check("1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret");
    check("82", ":method: GET");
}

#[test]
fn the_requests_of_the_rfc_decode_with_and_without_the_code() {
    let first = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com";
    let second = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache";
    let third =
        ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\ncustom-key: custom-value";
    // C.3 and C.4.
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::default();
        for (block, want) in blocks.iter().zip([first, second, third]) {
            assert_eq!(decode(&mut decoder, &bytes(block)), Ok(lines(want)), "{block}");
        }
    }
    // The encoder writes C.4, in which the Huffman code is shorter.
    let mut encoder = Encoder::default();
    for (block, want) in coded.iter().zip([first, second, third]) {
        let mut out = Vec::new();
        encoder.begin_block(&mut out);
        for (name, value) in lines(want) {
            encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Insert, &mut out);
        }
        assert_eq!(out, bytes(block));
    }
}

#[test]
fn the_responses_of_the_rfc_decode_while_a_small_table_throws_out() {
    let first = ":status: 302\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\n\
                 location: https://www.example.com";
    let second = ":status: 307\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\n\
                  location: https://www.example.com";
    let third = ":status: 200\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:22 GMT\n\
                 location: https://www.example.com\ncontent-encoding: gzip\n\
                 set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    // C.5 and C.6; the table's 256 bytes are set before, as the examples assume.
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d
         546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b
         2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7
         8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    let with_size =
        |block: &str, is_first: bool| if is_first { [bytes("3fe1 01"), bytes(block)].concat() } else { bytes(block) };
    for blocks in [plain, coded] {
        let mut decoder = Decoder::default();
        for (index, (block, want)) in blocks.iter().zip([first, second, third]).enumerate() {
            assert_eq!(decode(&mut decoder, &with_size(block, index == 0)), Ok(lines(want)), "{block}");
        }
    }
    let mut encoder = Encoder::default();
    encoder.set_table_size_max(256);
    for (index, (block, want)) in coded.iter().zip([first, second, third]).enumerate() {
        let mut out = Vec::new();
        encoder.begin_block(&mut out);
        for (name, value) in lines(want) {
            encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Insert, &mut out);
        }
        // The RFC encodes "307" with Huffman, which saves nothing; our encoder writes plain text.
        if index == 1 {
            assert_eq!(out, bytes("4803 3330 37c1 c0bf"));
        } else {
            assert_eq!(out, with_size(block, index == 0));
        }
    }
}

#[test]
fn sizes_of_the_table_are_told_in_the_next_block_and_the_least_first() {
    let mut encoder = Encoder::default();
    encoder.set_table_size_max(100_000);
    assert!(!encoder.is_size_due(), "no more than 4 KiB is ever used");
    encoder.set_table_size_max(0);
    encoder.set_table_size_max(1_000);
    let mut out = Vec::new();
    encoder.begin_block(&mut out);
    assert_eq!(out, bytes("20 3fc9 07"));
    assert_eq!(decode(&mut Decoder::default(), &out), Ok(Vec::new()));
    encoder.begin_block(&mut out);
    assert_eq!(out.len(), 4, "once");
    // A table of size 0 has no entries, and blocks decode without it.
    let mut encoder = Encoder::default();
    encoder.set_table_size_max(0);
    let mut decoder = Decoder::default();
    for _ in 0..2 {
        let mut out = Vec::new();
        encoder.begin_block(&mut out);
        encoder.encode(b"grpc-status", b"0", Indexing::Insert, &mut out);
        assert_eq!(decode(&mut decoder, &out), Ok(lines("grpc-status: 0")));
    }
}

#[test]
fn what_is_no_block_is_told_apart() {
    let check = |hex: &str, want| assert_eq!(decode(&mut Decoder::default(), &bytes(hex)), Err(want), "{hex}");
    check("80", DecodeError::Index); // RFC 7541 §6.1: index 0
    check("be", DecodeError::Index); // the dynamic table is empty
    check("7e 01 61", DecodeError::Index);
    check("ff ff ff ff ff 7f", DecodeError::Integer);
    check("82 20", DecodeError::TableSize); // §4.2: not first
    check("3f e2 1f", DecodeError::TableSize); // 4097
    check("40", DecodeError::Truncated);
    check("40 01", DecodeError::Truncated);
    check("40 01 61", DecodeError::Truncated);
    check("40 01 61 02 62", DecodeError::Truncated);
    check("ff", DecodeError::Truncated);
    check("40 01 61 81 00", DecodeError::Huffman); // padding of zeros
    check("40 01 61 81 ff", DecodeError::Huffman); // eight bits of padding
    check("40 01 61 84 ff ff ff ff", DecodeError::Huffman); // the end inside
    assert_eq!(decode(&mut Decoder::default(), &bytes("3f e1 1f")), Ok(Vec::new()), "4096 is allowed");
    assert_eq!(TABLE_SIZE_MAX, 4096);
}

#[test]
fn any_fields_come_back_through_tables_of_any_size() {
    let mut seed = 7_u64;
    let mut random = move |bound: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % bound
    };
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    for round in 0..3_000 {
        if random(20) == 0 {
            encoder.set_table_size_max(random(5_000) as usize);
        }
        let mut fields = Fields::new();
        for _ in 0..random(6) {
            let name = ["content-type", "x", "grpc-status", ":status", "longer-name-of-a-field"][random(5) as usize];
            let value: String = (0..random(60)).map(|_| char::from(32 + random(90) as u8)).collect();
            let value = if random(3) == 0 { "200".to_owned() } else { value };
            fields.push((name.to_owned(), value));
        }
        let mut out = Vec::new();
        encoder.begin_block(&mut out);
        for (name, value) in &fields {
            let indexing = if random(2) == 0 { Indexing::Insert } else { Indexing::Without };
            encoder.encode(name.as_bytes(), value.as_bytes(), indexing, &mut out);
        }
        assert_eq!(decode(&mut decoder, &out), Ok(fields), "round {round}");
    }
}

#[test]
fn no_bytes_make_the_decoder_panic() {
    let mut seed = 11_u64;
    for _ in 0..20_000 {
        let mut block = Vec::new();
        for _ in 0..24 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            block.push((seed >> 35) as u8);
        }
        let _ = decode(&mut Decoder::default(), &block);
        let _ = huffman::decode(&block, &mut Vec::new());
    }
}

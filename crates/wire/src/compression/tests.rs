//! The coding that fields name, and bodies that are whole, cut, damaged, too long or made of
//! several.

use std::io::Write;

use bytes::Bytes;

use crate::compression::deflate::DeflateLevel;
use crate::compression::fuzz::{deflate, exercise, inflate};
use crate::compression::inflate::{InflateFault, Inflation};
use crate::compression::{AcceptedCoding, Coding, ContentCoding};
use crate::limits::{DEFLATE_SLICE, INFLATE_MEMBERS_MAX};

const CODINGS: [Coding; 3] = [Coding::Deflate, Coding::Gzip, Coding::Zstd];

#[test]
fn a_body_has_one_coding_or_none_or_is_unknown() {
    let check = |values: &[&str], want| {
        let got = values.iter().fold(ContentCoding::default(), |have, value| have.and(value.as_bytes()));
        assert_eq!(got, want, "{values:?}");
    };
    for plain in [&[][..], &[""], &["identity"], &["Identity", "identity , identity"]] {
        check(plain, ContentCoding::Identity);
    }
    check(&["gzip"], ContentCoding::Coded(Coding::Gzip));
    check(&["identity, X-GZip", "identity"], ContentCoding::Coded(Coding::Gzip));
    check(&["deflate"], ContentCoding::Coded(Coding::Deflate));
    check(&[" zstd ,"], ContentCoding::Coded(Coding::Zstd));
    for unknown in [&["br"][..], &["gzip, gzip"], &["gzip", "deflate"], &["gzip;q=0"], &["br", "gzip"]] {
        check(unknown, ContentCoding::Unknown);
    }
    assert_eq!(ContentCoding::from_grpc(b"gzip"), ContentCoding::Coded(Coding::Gzip));
    assert_eq!(ContentCoding::from_grpc(b"identity"), ContentCoding::Identity);
    for unknown in ["", "GZIP", "zstd", "snappy", "gzip,deflate"] {
        assert_eq!(ContentCoding::from_grpc(unknown.as_bytes()), ContentCoding::Unknown, "{unknown}");
    }
}

#[test]
fn the_best_quality_wins_and_of_equal_ones_the_first() {
    let check = |value: &str, want: Option<Coding>, is_forced| {
        let got = AcceptedCoding::from_fields(value.split('|').map(str::as_bytes));
        assert_eq!(got, AcceptedCoding { coding: want, is_forced }, "{value}");
    };
    use Coding::{Deflate, Gzip, Zstd};
    for (value, want) in [
        ("", None),
        ("gzip", Some(Gzip)),
        ("GZIP", Some(Gzip)),
        ("deflate, gzip, br, zstd", Some(Deflate)),
        ("gzip;q=0.5, deflate", Some(Deflate)),
        ("gzip;q=0.5|deflate;q=0.6, zstd; q=0.601", Some(Zstd)),
        ("gzip;q=0, deflate;q=0.000", None),
        ("identity, gzip", None),
        ("gzip, identity", Some(Gzip)),
        ("gzip;q=0.9, identity", None),
        ("gzip;q=0.9, identity;q=0.5", Some(Gzip)),
        ("*", None),
        ("*, gzip;q=0.1", Some(Gzip)),
        ("br, *;q=0.1", None),
        ("gzip;q=2", None),
        ("gzip;q=-1", None),
        ("gzip;q=0.1234", None),
        ("gzip;q=a", None),
        ("gzip;level=9;q=0.1, zstd;q=0.2", Some(Zstd)),
        ("gzip;q=1.000, zstd;q=1", Some(Gzip)),
        ("gzip;q=1.001", None),
        ("identity;q=0", None),
        ("*;q=0", None),
        (",;,=,q=1", None),
    ] {
        check(value, want, false);
    }
    check("identity;q=0, zstd;q=0.1", Some(Zstd), true);
    check("gzip, *;q=0", Some(Gzip), true);
    check("identity;q=0, *", Some(Gzip), true);
    check("identity;q=0, gzip;q=0, *", None, false);
    assert_eq!(Coding::from_grpc_accept(b"identity, deflate, gzip"), Some(Gzip));
    assert_eq!(Coding::from_grpc_accept(b"identity,deflate"), Some(Deflate));
    assert_eq!(Coding::from_grpc_accept(b"identity, zstd"), None);
}

/// Bytes that compress a little.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 & 0x3f
    };
    (0..size).map(|_| next()).collect()
}

#[test]
fn what_is_compressed_in_parts_is_inflated_whatever_the_steps_are() {
    for (size, parts) in [(0, 1), (1, 1), (5_000, 3), (DEFLATE_SLICE, 1), (DEFLATE_SLICE * 3 + 7, 2), (700_000, 5)] {
        let body = Bytes::from(noise(size));
        let cut = body.chunks(size.div_ceil(parts).max(1)).map(Bytes::copy_from_slice);
        let cut: Vec<_> = cut.chain([Bytes::new()]).collect();
        for coding in CODINGS {
            for level in [DeflateLevel::Low, DeflateLevel::Medium, DeflateLevel::High] {
                let coded = deflate(coding, level, cut.clone());
                assert!(size < 1_000 || coded.len() < size * 9 / 10, "{coding:?} {level:?} {size}: {}", coded.len());
                for step_size in [1_000, 65_536] {
                    let got = inflate(coding, &coded, step_size);
                    assert!(got.as_ref().is_ok_and(|got| *got == body), "{coding:?} {level:?} {size}");
                }
            }
        }
    }
}

#[test]
fn what_other_encoders_write_is_read() {
    let body = noise(10_000);
    let level = flate2::Compression::default();
    let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), level);
    raw.write_all(&body).unwrap();
    assert_eq!(inflate(Coding::Deflate, &raw.finish().unwrap(), 999), Ok(body.clone()), "bare DEFLATE");
    let named = flate2::GzBuilder::new().filename("name").comment("c").extra(vec![1; 40]);
    let mut named = named.write(Vec::new(), level);
    named.write_all(&body).unwrap();
    assert_eq!(inflate(Coding::Gzip, &named.finish().unwrap(), 999), Ok(body), "a head with all fields");
}

#[test]
fn what_is_cut_damaged_or_too_long_is_refused() {
    let body = noise(3_000);
    for coding in CODINGS {
        let coded = deflate(coding, DeflateLevel::Medium, vec![body.clone().into()]);
        assert_eq!(inflate(coding, &coded, 500), Ok(body.clone()));
        for end in (0..coded.len()).step_by(7).chain([coded.len() - 1]) {
            let want = if end == 0 { InflateFault::Empty } else { InflateFault::Cut };
            assert_eq!(inflate(coding, &coded[..end], 500), Err(want), "{coding:?} {end} of {}", coded.len());
        }
        let more = [&coded[..], b"more"].concat();
        let want = if coding == Coding::Deflate { InflateFault::Trailing } else { InflateFault::Damaged };
        assert_eq!(inflate(coding, &more, 500), Err(want), "{coding:?}");
        assert!(inflate(coding, &body, 500).is_err(), "{coding:?} of what is none");
    }
    // The checksum of gzip and zlib stands at the end.
    for (coding, at) in [(Coding::Gzip, 8), (Coding::Deflate, 1)] {
        let mut coded = deflate(coding, DeflateLevel::Low, vec![body.clone().into()]);
        let last = coded.len() - at;
        coded[last] ^= 1;
        assert_eq!(inflate(coding, &coded, 500), Err(InflateFault::Damaged), "{coding:?}");
    }
}

#[test]
fn members_follow_each_other_up_to_a_bound() {
    for coding in [Coding::Gzip, Coding::Zstd] {
        let one = deflate(coding, DeflateLevel::Low, vec![Bytes::from_static(b"ab")]);
        assert_eq!(inflate(coding, &one.repeat(3), 100), Ok(b"ababab".to_vec()), "{coding:?}");
        let most = inflate(coding, &one.repeat(INFLATE_MEMBERS_MAX), 100);
        assert_eq!(most.map(|bytes| bytes.len()), Ok(2 * INFLATE_MEMBERS_MAX));
        let more = inflate(coding, &one.repeat(INFLATE_MEMBERS_MAX + 1), 100);
        assert_eq!(more, Err(InflateFault::Members), "{coding:?}");
    }
}

#[test]
fn a_window_of_zstd_is_bounded_and_counted() {
    // A frame head that asks for 2^24 bytes, and one block.
    let frame =
        |exponent: u8| [&[0x28, 0xb5, 0x2f, 0xfd, 0, (exponent - 10) << 3][..], &[0x19, 0, 0, b'a', b'b']].concat();
    let large = inflate(Coding::Zstd, &frame(24), 100);
    assert_eq!(large, Err(InflateFault::Window));
    let body = Bytes::from([&[0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3][..], &[0x19, 0, 0, b'a', b'b', b'c']].concat());
    assert_eq!(inflate(Coding::Zstd, &body, 100), Ok(b"abc".to_vec()));
    let mut inflation = Inflation::new(Coding::Zstd, body).unwrap();
    assert_eq!(inflation.step(&mut [0; 2]), Ok((2, false)));
    assert!(inflation.memory_size() > 8 << 20, "{}", inflation.memory_size());
}

#[test]
fn the_seeds_of_the_fuzz_target_pass() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/inflate");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        exercise(&seed);
        // And each with a byte changed.
        for at in 0..seed.len().min(60) {
            let mut changed = seed.clone();
            changed[at] ^= 0x55;
            exercise(&changed);
        }
        count += 1;
    }
    assert!(count >= 8, "{count} seeds");
}

//! Files of clients: what is refused, and with which text.

use super::*;
use crate::tensors::{floats, integers, of_strings};
use crate::trial::{built, fault, run};

/// A WAV file of 16 bits.
fn wav(channels: u16, sample_rate: u32, samples: &[i16]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let mut file =
        [b"RIFF".as_slice(), &(36 + data.len() as u32).to_le_bytes(), b"WAVEfmt ", &16_u32.to_le_bytes()].concat();
    file.extend([1_u16.to_le_bytes(), channels.to_le_bytes()].concat());
    file.extend([sample_rate.to_le_bytes(), (sample_rate * u32::from(channels) * 2).to_le_bytes()].concat());
    file.extend([(channels * 2).to_le_bytes(), 16_u16.to_le_bytes()].concat());
    file.extend([b"data".as_slice(), &(data.len() as u32).to_le_bytes(), &data].concat());
    file
}

/// A FLAC file without frames.
fn flac(sample_rate: u64, channels: u64, bits: u64, total: u64) -> Vec<u8> {
    let fields = sample_rate << 44 | (channels - 1) << 41 | (bits - 1) << 36 | total;
    [b"fLaC\x80\0\0\x22".as_slice(), &[0; 10], &fields.to_be_bytes(), &[0; 16]].concat()
}

fn refused(file: &[u8], members: &str) -> String {
    fault("audio", &[("audio", &of_strings(&[1], [file]))], &["samples"], members)
}

#[test]
fn rows_are_as_long_as_the_longest_or_as_asked() {
    let files = of_strings(&[2, 1], [wav(1, 8000, &[16_384, -16_384, 8192]), wav(2, 16_000, &[0, -32_768])]);
    let check = |members: &str, want: &[&[f32]; 2], lengths: [i64; 2]| {
        let got = run("audio", &[("audio", &files)], &["samples", "lengths", "sample_rate"], members).unwrap();
        assert_eq!(floats("", &got[0]).unwrap()[..], want.concat(), "{members}");
        assert_eq!(integers("", &got[1]).unwrap()[..], lengths, "{members}");
        assert_eq!(integers("", &got[2]).unwrap()[..], [8000, 16_000], "{members}");
    };
    check("", &[&[0.5, -0.5, 0.25], &[-0.5, 0.0, 0.0]], [3, 1]);
    check(r#""length": 2"#, &[&[0.5, -0.5], &[-0.5, 0.0]], [2, 1]);
    check(r#""length": 4, "channels": "one""#, &[&[0.5, -0.5, 0.25, 0.0], &[0.0; 4]], [3, 1]);
}

#[test]
fn faults_are_named() {
    let check = |file: &[u8], members: &str, want: &str| {
        assert_eq!(refused(file, members), format!("'audio', row 0: {want}"));
    };
    check(b"?", "", "the string is neither a WAV or FLAC file nor one in base64");
    check(b"UklGRg==", "", "the file is neither WAV nor FLAC");
    check(b"", r#""encoding": "raw""#, "the file is neither WAV nor FLAC");
    check(b"RIFF\0\0\0\0WAVE", "", "WAV: the file has no \"data\" chunk");
    let one = wav(1, 8000, &[1, 2]);
    let check_changed = |at: usize, byte: u8, want: &str| {
        let mut file = one.clone();
        file[at] = byte;
        check(&file, "", want);
    };
    check_changed(16, 15, "WAV: the file has a \"fmt \" chunk that is too short");
    check_changed(22, 0, "WAV: the file has 0 channels and 8000 Hz");
    let coding = "is not supported; PCM of 8 to 32 bits, floats, A-law and µ-law are";
    check_changed(20, 17, &format!("WAV: the coding 0x11 with 16 bits {coding}"));
    check_changed(34, 40, &format!("WAV: the coding 0x1 with 40 bits {coding}"));
    check_changed(12, b'x', "WAV: the file must have one \"fmt \" chunk and then one \"data\" chunk");
    let mut broken = one.clone();
    (broken[32], broken[34]) = (4, 24);
    let text = "WAV: the file has 24 bits for a sample and 32 bits of space, which programs take for different codings";
    check(&broken, "", text);
    check(&[one.as_slice(), &one].concat(), "", "WAV: the file has a second file behind it");
    check(&one, r#""sample_rate": 16000"#, "the file has 8000 Hz, but \"sample_rate\" is 16000");
    check(&one, r#""channels": "one", "channel": 1"#, "the file has 1 channels, but \"channel\" is 1");
    check(&flac(0, 1, 16, 0), "", "FLAC: the file has 0 Hz and 16 bits for a sample");
    check(&flac(8000, 1, 16, 1), "", "FLAC: the file ends before its last sample");
    check(&flac(8000, 1, 16, 0)[..30], "", "FLAC: the file has no end");
    check(b"fLaC\x84\0\0\0", "", "FLAC: the file does not begin with a STREAMINFO block");
    let frame = [flac(8000, 1, 16, 1).as_slice(), &[0xFF; 20]].concat();
    check(&frame, "", "FLAC: the file has a malformed frame");
    let frame = [flac(8000, 1, 16, 1).as_slice(), &[0xFF, 0xF8, 0x69, 0x08, 0, 0, 0xBF]].concat();
    check(&frame, "", "FLAC: the file has a frame header with a wrong checksum");
    let two = of_strings(&[2], [wav(1, 8000, &[1]), wav(2, 8000, &[1, 2])]);
    let got = fault("audio", &[("audio", &two)], &["samples"], r#""channels": "all""#);
    assert_eq!(got, "'audio', row 1: it has 2 channels, but row 0 has 1");
    let error = built("audio", &["audio"], &["samples"], r#""resample": "scipy""#).err().unwrap();
    assert_eq!(error, "step 1: line 1: \"resample\": needs \"sample_rate\"");
}

#[test]
fn shapes_are_those_of_files() {
    let bytes = |shape: &[i64], size: usize| {
        let tensor = Tensor { datatype: Datatype::Uint8, shape: shape.into(), contents: vec![0; size].into() };
        fault("audio", &[("audio", &tensor)], &["samples"], "")
    };
    let expected = "'audio' must have the shape [bytes] or [rows, bytes] for UINT8, but its shape is";
    assert_eq!(bytes(&[1, 2, 3], 6), format!("{expected} [1, 2, 3]"));
    assert_eq!(bytes(&[1 << 40, 0], 0), format!("{expected} [1099511627776, 0]"));
    assert_eq!(bytes(&[3], 2), "'audio' has contents of another size than its shape [3]");
    assert_eq!(bytes(&[2, 3], 6), "'audio', row 0: the file is neither WAV nor FLAC");
    let numbers = of_floats(&[1], vec![0.0]);
    let got = fault("audio", &[("audio", &numbers)], &["samples"], "");
    assert_eq!(got, "'audio' must hold BYTES or UINT8, but it is FP32");
}

#[test]
fn limits_hold_before_memory_is_taken() {
    let most = format!("at most {AUDIO_SAMPLES_MAX} are allowed");
    let got = refused(&flac(8000, 8, 16, (AUDIO_SAMPLES_MAX / 8 + 1) as u64), "");
    assert_eq!(got, format!("'audio', row 0: the file has {} samples or more, but {most}", AUDIO_SAMPLES_MAX + 8));
    // A file that does not say how many there are.
    let mut mixer = Mixer::new(ChannelMix::One(0), 1024, None).unwrap();
    let frames = vec![0.0; 1 << 20];
    for _ in 0..AUDIO_SAMPLES_MAX >> 20 {
        mixer.push(&frames).unwrap();
    }
    assert!(mixer.push(&frames).is_err());
    let one = wav(1, 8000, &[1, 2]);
    let two = of_strings(&[2], [&one, &one]);
    let output =
        format!("'audio' has files that make more than the {AUDIO_OUTPUT_SIZE_MAX} bytes of output that are allowed");
    let members = format!("\"length\": {AUDIO_SAMPLES_MAX}");
    assert_eq!(fault("audio", &[("audio", &two)], &["samples"], &members), output);
    let members = r#""sample_rate": 700000, "resample": "torchaudio""#;
    let got = refused(&wav(1, 699_999, &[1]), members);
    assert_eq!(got, "'audio', row 0: 699999 Hz to 700000 Hz takes a filter of more than 2097152 weights");
    let long = wav(1, 1, &[0; 3000]);
    let got = refused(&long, r#""sample_rate": 100000, "resample": "torchaudio""#);
    let more = format!("more than the {AUDIO_OUTPUT_SIZE_MAX} bytes of output that are allowed");
    assert_eq!(got, format!("'audio', row 0: the samples make {more}"));
}

//! The fuzz targets `audio_wav` and `audio_flac`, and the tests over their seeds: any bytes are decoded or refused. A panic
//! is a finding.

use base::error::Error;

use crate::audio::flac::Flac;
use crate::audio::wav::Wav;

/// Decodes any bytes as a WAV file; returns true if they are one.
pub fn exercise_wav(bytes: &[u8]) -> bool {
    if !Wav::is_known(bytes) {
        return false;
    }
    let Ok(file) = Wav::open(bytes) else { return false };
    let mut sample_count = 0;
    let read = file.read(&mut |frames| {
        sample_count += frames.len();
        Ok(())
    });
    assert_eq!(sample_count, file.frame_count() * file.channels, "a file has its samples");
    read.is_ok()
}

/// Decodes any bytes as a FLAC file; returns true if they are one.
pub fn exercise_flac(bytes: &[u8]) -> bool {
    if !Flac::is_known(bytes) {
        return false;
    }
    Flac::open(bytes).is_ok_and(|file| is_read(&file)) & exercise_unsummed(bytes)
}

/// The same without a look at checksums, which refuse nearly all files that a fuzzer makes.
fn exercise_unsummed(bytes: &[u8]) -> bool {
    Flac::is_known(bytes) && Flac::open_unsummed(bytes).is_ok_and(|file| is_read(&file))
}

fn is_read(file: &Flac<'_>) -> bool {
    let mut sample_count = 0;
    let read = file.read(&mut |frames| {
        sample_count += frames.len();
        assert!(frames.iter().all(|sample| (-1.0..=1.0).contains(sample)), "samples are in range");
        // More are left to the limits of the step: they would only make a run slow.
        if sample_count > SAMPLES_MAX { Err(Error::invalid("long")) } else { Ok(()) }
    });
    if read.is_ok() {
        let is_whole = file.frame_count().is_none_or(|count| sample_count == count * file.channels);
        assert!(is_whole, "a file has its samples");
    }
    read.is_ok()
}

const SAMPLES_MAX: usize = 1 << 20;

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
mod tests;

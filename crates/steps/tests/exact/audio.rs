//! Steps for audio against soundfile, scipy, kaldi-native-fbank and transformers; torchaudio's resampling is restated.

use crate::cases::{compare_in, compare_with_transformers};

#[test]
fn samples_of_files_are_soundfiles() {
    compare_in("steps-audio", "requirements-audio.txt", "audio_files.py");
}

#[test]
fn resampled_audio_is_that_of_torchaudio_and_scipy() {
    compare_in("steps-audio", "requirements-audio.txt", "audio_resample.py");
}

#[test]
fn filter_banks_are_kaldis() {
    compare_in("steps-audio", "requirements-audio.txt", "audio_fbank.py");
}

#[test]
fn log_mel_spectrograms_are_those_of_transformers() {
    compare_with_transformers("audio_log_mel.py");
}

"""The work of `audio_speed.rs` as people write it in Python, one thread: `python audio_speed.py FOLDER`, with numpy, scipy,
soundfile, kaldi-native-fbank and transformers (tests/exact/requirements-audio.txt, requirements-transformers.txt). Writes the files
that `audio_speed.rs` reads into the folder."""

import io
import sys
import time

import kaldi_native_fbank as knf
import numpy as np
import soundfile
from scipy import signal
from transformers import WhisperFeatureExtractor

SECONDS = 10
rng = np.random.default_rng(1)


def voice(rate, channels):
    """Harmonics below an envelope of syllables, and noise."""
    t = np.arange(SECONDS * rate)[:, None] / rate
    tone = sum(np.sin(2 * np.pi * (120 + 30 * np.sin(2 * t)) * harmonic * t) / harmonic for harmonic in range(1, 20))
    noise = rng.standard_normal((len(t), channels)) / 300
    return tone * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t)) / 6 + noise


def encoded(rate, channels, form):
    file = io.BytesIO()
    soundfile.write(file, voice(rate, channels), rate, subtype="PCM_16", format=form)
    return file.getvalue()


FILES = {"mono.wav": encoded(16000, 1, "WAV"), "mono.flac": encoded(16000, 1, "FLAC"),
         "stereo.wav": encoded(44100, 2, "WAV"), "stereo.flac": encoded(44100, 2, "FLAC")}
for name, data in FILES.items():
    with open(f"{sys.argv[1]}/{name}", "wb") as output:
        output.write(data)


def read(name):
    samples, _ = soundfile.read(io.BytesIO(FILES[name]), dtype="float32", always_2d=True)
    return samples.mean(axis=1)


SPEECH, MUSIC = read("mono.wav"), read("stereo.wav")
extractor = WhisperFeatureExtractor()


def fbank():
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.mel_opts.num_bins = 80
    made = knf.OnlineFbank(options)
    made.accept_waveform(16000, SPEECH.tolist())
    made.input_finished()
    return np.stack([made.get_frame(index) for index in range(made.num_frames_ready)])


for name, work in (
    ("decode mono.wav", lambda: read("mono.wav")),
    ("decode mono.flac", lambda: read("mono.flac")),
    ("decode stereo.wav", lambda: read("stereo.wav")),
    ("decode stereo.flac", lambda: read("stereo.flac")),
    ("resample 44.1 to 16 kHz, scipy", lambda: signal.resample_poly(MUSIC, 160, 441)),
    ("fbank, 80 bins", fbank),
    ("log_mel, 80 bins, 30 s", lambda: extractor(SPEECH, sampling_rate=16000, return_tensors="np")),
):
    times = []
    for _ in range(20):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(f"{name}: {sorted(times)[10] * 1e6 / SECONDS:.0f} µs for a second of audio")

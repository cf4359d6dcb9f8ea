"""Log-mel spectrograms as transformers' WhisperFeatureExtractor makes them without torch. Its functions are restated, and held to
it where it is installed."""

import json
import sys

import numpy as np

from cases import Cases

try:
    from transformers import WhisperFeatureExtractor
except ImportError:
    WhisperFeatureExtractor = None

rng = np.random.default_rng(23)
cases = Cases(sys.argv[1], "cases")
count = 150 if sys.argv[2] == "whole" else 12


def mel(hertz):
    return np.where(hertz < 1000, 3 * hertz / 200, 15 + np.log(np.maximum(hertz, 1e-9) / 1000) * (27 / np.log(6.4)))


def hertz(mels):
    return np.where(mels < 15, 200 * mels / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))


def filters(bins, size, rate):
    edges = hertz(np.linspace(0, mel(8000.0), size + 2))
    slopes = edges[None] - np.linspace(0, rate // 2, bins)[:, None]
    triangles = np.maximum(0, np.minimum(-slopes[:, :-2] / np.diff(edges)[:-1], slopes[:, 2:] / np.diff(edges)[1:]))
    return triangles * (2 / (edges[2:] - edges[:-2]))[None]


def features(samples, feature_size, sampling_rate, n_fft, hop_length, chunk_length):
    length = chunk_length * sampling_rate or len(samples)
    samples = np.pad(samples[:length], (0, max(length - len(samples), 0)))
    wide = np.pad(samples, n_fft // 2, mode="reflect").astype(np.float64)
    frames = np.lib.stride_tricks.sliding_window_view(wide, n_fft)[::hop_length]
    spectrum = np.fft.rfft(frames * np.hanning(n_fft + 1)[:-1]).astype(np.complex64)
    energies = np.maximum(1e-10, filters(n_fft // 2 + 1, feature_size, sampling_rate).T @ (np.abs(spectrum, dtype=np.float64) ** 2).T)
    logs = np.log10(energies).astype(np.float32)[:, :-1]
    return (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0


held = 0
for index in range(count):
    form = {"feature_size": 80, "sampling_rate": 16000, "n_fft": 400, "hop_length": 160, "chunk_length": int(rng.choice([1, 2, 5]))}
    if index % 4 == 1:
        form["feature_size"] = 128
    if index % 4 == 2:
        form.update(n_fft=int(rng.choice([400, 512, 1024, 480, 254, 154])), hop_length=int(rng.choice([160, 128, 100])),
                    feature_size=int(rng.choice([40, 64])), sampling_rate=int(rng.choice([16000, 22050, 48000])))
    if index == 0:
        form["chunk_length"] = 30
    limit = form["chunk_length"] * form["sampling_rate"]
    length = int(rng.choice([1, 150, limit // 3, limit - 70, limit, limit + 999]))
    t = np.arange(length) / form["sampling_rate"]
    kind = int(rng.integers(4))
    samples = [
        rng.standard_normal(length) / 4,
        np.sin(2 * np.pi * 440 * t) * np.exp(-3 * t),
        np.round(rng.standard_normal(length) * 40) / 32768,
        np.sin(2 * np.pi * t * (100 + 3000 * t)) * (rng.random() + 0.01) + rng.standard_normal(length) * 1e-3,
    ][kind].astype(np.float32)
    want = features(samples, **form)
    if WhisperFeatureExtractor:
        whole = WhisperFeatureExtractor(**form)(samples, sampling_rate=form["sampling_rate"], return_tensors="np")
        assert np.abs(whole["input_features"][0] - want).max() < 1e-6
        want = whole["input_features"][0]
        held += 1
    step = {"step": "log_mel", **form}
    cases.add(step, {"samples": samples[None]}, {"features": (want[None], 0, 1e-5)})
    files = {"preprocessor_config.json": json.dumps({**form, "feature_extractor_type": "WhisperFeatureExtractor", "padding_value": 0.0})}
    if index % 5 == 0:
        cases.add({"step": "log_mel", "config": "preprocessor_config.json"}, {"samples": samples}, {"features": (want, 0, 1e-5)}, files)
    if length > form["n_fft"]:
        own = features(samples, **{**form, "chunk_length": 0})
        cases.add({"step": "log_mel", "config": "preprocessor_config.json", "chunk_length": 0}, {"samples": np.stack([samples, samples])},
                  {"features": (np.stack([own, own]), 0, 1e-5)}, files)
print(f"{held} spectrograms held to transformers")

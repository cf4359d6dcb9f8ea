"""Resampling by scipy, and as torchaudio does it, which is restated: its functions need torch."""

import math
import sys

import numpy as np
from scipy import signal

from cases import Cases

rng = np.random.default_rng(22)
cases = Cases(sys.argv[1], "cases")
count = 1_500 if sys.argv[2] == "whole" else 60
RATES = [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 96000]


def torchaudio(samples, orig_freq, new_freq, dtype):
    """`transforms.Resample` (dtype None: the kernel is made in FP64) and `functional.resample` (FP32)."""
    divisor = math.gcd(orig_freq, new_freq)
    orig_freq, new_freq = orig_freq // divisor, new_freq // divisor
    if orig_freq == new_freq:
        return samples
    lowpass_filter_width = 6
    base_freq = min(orig_freq, new_freq) * 0.99
    width = math.ceil(lowpass_filter_width * orig_freq / base_freq)
    kind = np.float64 if dtype is None else dtype
    idx = np.arange(-width, width + orig_freq).astype(kind)[None] / kind(orig_freq)
    # A torch tensor of integers divided by an integer is FP32.
    phases = np.arange(0, -new_freq, -1).astype(np.float32)[:, None] / np.float32(new_freq)
    t = (phases + idx).astype(kind) * kind(base_freq)
    t = np.clip(t, -lowpass_filter_width, lowpass_filter_width)
    window = np.cos(t * kind(math.pi) / kind(lowpass_filter_width) / kind(2)) ** 2
    t = t * kind(math.pi)
    scale = base_freq / orig_freq
    kernels = np.where(t == 0, kind(1), np.sin(t) / np.where(t == 0, kind(1), t))
    kernels = (kernels * (window * kind(scale))).astype(np.float32)
    rows, length = samples.shape
    wide = np.pad(samples, [(0, 0), (width, width + orig_freq)]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(wide, kernels.shape[1], axis=1)[:, ::orig_freq]
    result = (windows @ kernels.astype(np.float64).T).reshape(rows, -1)
    target = int(np.ceil(np.float32(new_freq * length / orig_freq)))
    return result[:, :target].astype(np.float32)


for index in range(count):
    source, target = (int(rate) for rate in rng.choice(RATES, 2))
    if index % 20 == 0:
        source, target = 2001, 2000
    rows, length = int(rng.integers(1, 3)), int(rng.choice([1, 2, 100, 1000, 20011]))
    t = np.arange(length) / source
    if rng.random() < 0.5:
        samples = np.clip(rng.standard_normal((rows, length)) / 3, -1, 1)
    else:
        samples = np.stack([np.sin(2 * np.pi * rng.random() * source / 2 * t) for _ in range(rows)])
    samples = samples.astype(np.float32)
    step = {"step": "resample", "from": source, "to": target}
    for method, want in {
        "torchaudio": torchaudio(samples, source, target, None),
        "torchaudio_functional": torchaudio(samples, source, target, np.float32),
        "scipy": signal.resample_poly(samples, target, source, axis=1),
    }.items():
        cases.add({**step, "method": method}, {"samples": samples}, {"samples": (want, 0, 1e-6)})

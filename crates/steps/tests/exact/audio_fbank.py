"""Filter banks of kaldi-native-fbank, and what models do with them in numpy: CMVN, and FunASR's LFR."""

import sys

import kaldi_native_fbank as knf
import numpy as np

from cases import Cases

rng = np.random.default_rng(24)
cases = Cases(sys.argv[1], "cases")
count = 2_500 if sys.argv[2] == "whole" else 150
WINDOWS = ["povey", "hanning", "hann", "hamming", "blackman", "sine", "rectangular"]


def fbank(samples, step):
    options = knf.FbankOptions()
    frame, mel = options.frame_opts, options.mel_opts
    frame.dither = 0
    frame.samp_freq = step.get("sample_rate", 16000)
    frame.frame_length_ms = step.get("frame_length_ms", 25)
    frame.frame_shift_ms = step.get("frame_shift_ms", 10)
    frame.window_type = step.get("window", "povey")
    frame.blackman_coeff = step.get("blackman_coeff", 0.42)
    frame.preemph_coeff = step.get("preemphasis", 0.97)
    frame.remove_dc_offset = step.get("remove_dc_offset", True)
    frame.round_to_power_of_two = step.get("round_to_power_of_two", True)
    frame.snip_edges = step.get("snip_edges", True)
    mel.num_bins = step.get("num_mel_bins", 80)
    mel.low_freq = step.get("low_freq", 20)
    mel.high_freq = step.get("high_freq", 0)
    mel.is_librosa = step.get("mel") == "librosa"
    options.use_log_fbank = step.get("use_log", True)
    options.use_power = step.get("use_power", True)
    options.use_energy = step.get("use_energy", False)
    options.energy_floor = step.get("energy_floor", 0)
    options.raw_energy = step.get("raw_energy", True)
    options.htk_compat = step.get("htk_compat", False)
    made = knf.OnlineFbank(options)
    made.accept_waveform(frame.samp_freq, (samples * np.float32(step.get("scale", 1))).tolist())
    made.input_finished()
    frames = [made.get_frame(index) for index in range(made.num_frames_ready)]
    return np.array(frames, np.float32).reshape(len(frames), mel.num_bins + options.use_energy)


def in_fp64(samples, step):
    """The logarithms of the same filters in FP64."""
    rate, scale = np.float32(step.get("sample_rate", 16000)), step.get("scale", 1)
    size = int(rate * np.float32(0.001) * np.float32(step.get("frame_length_ms", 25)))
    shift = int(rate * np.float32(0.001) * np.float32(step.get("frame_shift_ms", 10)))
    length, rate = len(samples), int(rate)
    if step.get("snip_edges", True):
        starts = np.arange(1 + (length - size) // shift) * shift
    else:
        starts = np.arange((length + shift // 2) // shift) * shift + shift // 2 - size // 2
    places = (starts[:, None] + np.arange(size)) % (2 * length)
    frames = samples.astype(np.float64)[np.minimum(places, 2 * length - 1 - places)] * scale
    if step.get("remove_dc_offset", True):
        frames = frames - frames.mean(1, keepdims=True)
    frames = frames - np.float32(step.get("preemphasis", 0.97)) * np.concatenate([frames[:, :1], frames[:, :-1]], 1)
    kind = step.get("window", "povey")
    angle = 2 * np.pi * np.arange(size) / (size if kind == "hann" else size - 1)
    hann, blackman = 0.5 - 0.5 * np.cos(angle), np.float32(step.get("blackman_coeff", 0.42))
    window = {"povey": hann**0.85, "hanning": hann, "hann": hann, "hamming": 0.54 - 0.46 * np.cos(angle), "sine": np.sin(angle / 2),
              "rectangular": np.ones(size), "blackman": blackman - 0.5 * np.cos(angle) + (0.5 - blackman) * np.cos(2 * angle)}[kind]
    padded = 1 << (size - 1).bit_length() if step.get("round_to_power_of_two", True) else size
    powers = np.abs(np.fft.rfft(frames * window.astype(np.float32), padded)) ** (2 if step.get("use_power", True) else 1)
    is_librosa = step.get("mel") == "librosa"

    def mel(hertz):
        if is_librosa:
            return np.where(hertz <= 1000, hertz * 3 / 200, 15 + 27 / np.log(6.4) * np.log(np.maximum(hertz, 1) / 1000))
        return 1127 * np.log(1 + hertz / 700)

    count, high = step.get("num_mel_bins", 80), step.get("high_freq", 0)
    edges = np.linspace(mel(step.get("low_freq", 20)), mel(high if high > 0 else rate / 2 + high), count + 2)
    bins = np.arange(padded // 2 + 1) * rate / padded
    if is_librosa:
        edges = np.where(edges <= 15, 200 / 3 * edges, 1000 * np.exp((edges - 15) * np.log(6.4) / 27))
    else:
        bins, powers = mel(bins[:-1]), powers[:, :-1]
    left, top, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    weights = np.maximum(0, np.minimum((bins - left) / (top - left), (right - bins) / (right - top)))
    if is_librosa:
        weights *= 2 / (right - left)
    return np.log(np.maximum(powers @ weights.T, np.finfo(np.float32).eps))


def settled(want, samples, step):
    """kaldi's result, and that of FP64 where kaldi's FP32 transform is not within half the tolerance of it: far below the loudest
    frequency of a frame there is only rounding."""
    global values, rounded
    first = int(step.get("use_energy", False) and not step.get("htk_compat", False))
    own, exact = want[:, first:first + step.get("num_mel_bins", 80)], in_fp64(samples, step)
    is_rounded = np.abs(own - exact) > 5e-4
    own[is_rounded] = exact[is_rounded]
    values, rounded = values + own.size, rounded + int(is_rounded.sum())
    return want


def apply_lfr(inputs, lfr_m, lfr_n):
    """funasr_onnx's."""
    frames = []
    count = int(np.ceil(inputs.shape[0] / lfr_n))
    inputs = np.vstack((np.tile(inputs[0], ((lfr_m - 1) // 2, 1)), inputs))
    for index in range(count):
        frame = inputs[index * lfr_n:index * lfr_n + lfr_m]
        padding = np.tile(inputs[-1], (lfr_m - len(frame), 1))
        frames.append(np.vstack((frame, padding)).reshape(-1))
    return np.stack(frames)


def signal(rate):
    """Signals with noise: kaldi's transform is FP32, and what lies 80 dB below the loudest frequency is rounding."""
    length = int(rng.choice([500, 3000, 8000, 16123]))
    t = np.arange(length) / rate
    kind = int(rng.integers(4))
    values = [
        rng.standard_normal(length) / 4,
        np.sin(2 * np.pi * t * (100 + 900 * t)) / 2 + rng.standard_normal(length) / 30,
        np.round(rng.standard_normal(length) * 3000) / 32768,
        sum(np.sin(2 * np.pi * 130 * harmonic * t) / harmonic for harmonic in range(1, 12)) / 4 + rng.standard_normal(length) / 30,
    ][kind]
    return np.clip(values + rng.choice([0, 0.01]), -1, 1).astype(np.float32)


def options():
    step = {}

    def sometimes(name, values, chance=0.25):
        if rng.random() < chance:
            step[name] = values[int(rng.integers(len(values)))]

    sometimes("sample_rate", [8000, 22050, 44100])
    sometimes("frame_length_ms", [20, 32, 64])
    sometimes("frame_shift_ms", [12.5, 20, 5])
    sometimes("scale", [32768], 0.5)
    sometimes("window", WINDOWS, 0.6)
    sometimes("blackman_coeff", [0.4])
    sometimes("preemphasis", [0, 0.9, 1.0])
    sometimes("remove_dc_offset", [False])
    sometimes("round_to_power_of_two", [False])
    sometimes("snip_edges", [False], 0.5)
    sometimes("num_mel_bins", [23, 40, 64])
    sometimes("low_freq", [0, 50, 133.5])
    sometimes("high_freq", [-400, 3800, 3500.5])
    sometimes("mel", ["librosa"])
    sometimes("use_log", [False])
    sometimes("use_power", [False])
    sometimes("use_energy", [True])
    sometimes("energy_floor", [1.0, 1e6])
    sometimes("raw_energy", [False])
    sometimes("htk_compat", [True])
    if step.get("num_mel_bins", 80) > 40 and step.get("mel"):
        step["num_mel_bins"] = 40
    rate = step.get("sample_rate", 16000)
    size = int(np.float32(rate) * np.float32(0.001) * np.float32(step.get("frame_length_ms", 25)))
    if step.get("num_mel_bins", 80) > 23 and (rate != 16000 or size < 400):
        step["num_mel_bins"] = 23
    if size % 2:
        step.pop("round_to_power_of_two", None)
    return step, rate


made = values = rounded = 0
while made < count:
    step, rate = options()
    samples = signal(rate)
    try:
        want = fbank(samples, step)
    except ValueError:  # a filter without a frequency
        continue
    if len(want) == 0:
        continue
    made += 1
    if step.get("use_log", True):
        want = settled(want, samples, step)
    tolerance = (0, 1e-3) if step.get("use_log", True) else (2e-5, 1e-5 * float(np.abs(want).max()))
    step = {"step": "fbank", **step}
    cases.add(step, {"samples": samples[None]}, {"features": (want[None], *tolerance), "lengths": np.array([len(want)], np.int64)})
    if not step.get("use_log", True):
        continue
    # CMVN and LFR, as models have them.
    mean, deviation = rng.standard_normal(want.shape[1]).astype(np.float32), rng.random(want.shape[1]).astype(np.float32) + 1
    cases.add({**step, "mean": mean.tolist(), "std": deviation.tolist()}, {"samples": samples},
              {"features": ((want - mean) / deviation, 0, 1e-3)})
    cases.add({**step, "normalize": "mean"}, {"samples": samples}, {"features": (want - want.mean(0), 0, 2e-3)})
    if len(want) > 8 and want.std(0).min() > 0.2:
        normal = (want - want.mean(0)) / (want.std(0) + 1e-5)
        cases.add({**step, "normalize": "mean_deviation"}, {"samples": samples}, {"features": (normal, 0, 1e-2)})
    window, shift = [(7, 6), (5, 1), (4, 3), (1, 2)][int(rng.integers(4))]
    stacked = apply_lfr(want, window, shift)
    shifts, scales = rng.standard_normal(stacked.shape[1]).astype(np.float32), rng.random(stacked.shape[1]).astype(np.float32)
    text = "<Nnet>\n<AddShift> 1 1\n<LearnRateCoef> 0 [ " + " ".join(map(repr, shifts.tolist())) + " ]\n<Rescale> 1 1\n"
    text += "<LearnRateCoef> 0 [ " + " ".join(map(repr, scales.tolist())) + " ]\n</Nnet>\n"
    lfr = {"lfr_window": window, "lfr_shift": shift}
    cases.add({**step, **lfr, "cmvn_file": "am.mvn"}, {"samples": samples},
              {"features": ((stacked + shifts) * scales, 0, 1e-3)}, {"am.mvn": text})
    if len(want) >= window:
        whole = [want[at:at + window].reshape(-1) for at in range(0, len(want) - window + 1, shift)]
        cases.add({**step, **lfr, "lfr_padding": False}, {"samples": samples}, {"features": (np.stack(whole), 0, 1e-3)})
    # Rows of other lengths.
    half = samples[:len(samples) // 2]
    half = settled(fbank(half, step), half, step)
    rows = np.zeros((2, *want.shape), np.float32)
    rows[0], rows[1, :len(half)] = want, half
    cases.add(step, {"samples": np.stack([samples, samples]), "lengths": np.array([len(samples), len(samples) // 2], np.int32)},
              {"features": (rows, 0, 1e-3), "lengths": np.array([len(want), len(half)], np.int64)})
print(f"{rounded} of {values} logarithms are rounded by kaldi: held to FP64")
assert rounded < values * 1e-4

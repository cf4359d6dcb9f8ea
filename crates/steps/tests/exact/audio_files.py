"""WAV and FLAC files of many kinds, and the samples that soundfile reads from them."""

import base64
import io
import struct
import sys

import numpy as np
import soundfile

from cases import Cases, texts

rng = np.random.default_rng(21)
cases = Cases(sys.argv[1], "cases")
count = 6_000 if sys.argv[2] == "whole" else 250
RATES = [8000, 11025, 16000, 22050, 44100, 48000, 96000, 12345]
CODINGS = [("u8", 1, 8), ("i16", 1, 16), ("i24", 1, 24), ("i32", 1, 32), ("f32", 3, 32), ("f64", 3, 64), ("alaw", 6, 8), ("mulaw", 7, 8)]
MICROSOFT = bytes([0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71])
AMBISONIC = bytes([0x86, 0x44, 0xC8, 0xC1, 0xCA, 0, 0, 0])


def wav():
    """A file written by hand, often unlike those of careful programs."""
    order = ">" if rng.random() < 0.1 else "<"
    name, tag, bits = CODINGS[int(rng.integers(len(CODINGS)))]
    channels, rate = int(rng.choice([1, 1, 2, 3, 6, 9, 20])), int(rng.choice(RATES))
    width, frames = bits // 8, int(rng.choice([0, 1, 7, 100, 5000]))
    if name in ("f32", "f64"):
        values = rng.standard_normal(frames * channels)
        values[rng.random(len(values)) < 0.01] = rng.choice([np.nan, np.inf, -np.inf, 1e300 if name == "f64" else 1e30, 1e-42])
        samples = values.astype(order + name[0] + str(width)).tobytes()
    else:
        samples = rng.integers(0, 256, frames * channels * width, np.uint8).tobytes()
    if rng.random() < 0.1:
        samples += rng.integers(0, 256, int(rng.integers(1, 9)), np.uint8).tobytes()
    if name in ("i16", "i24") and rng.random() < 0.2:
        bits -= int(rng.integers(1, 8))
    block = channels * width if rng.random() < 0.9 or name == "i24" else int(rng.integers(0, 9))
    fields = struct.pack(order + "HIIHH", channels, rate, rate * block & 0xFFFFFFFF, block, bits)
    style = rng.random()
    if style < 0.25:
        ambisonic = rng.random() < 0.2 and tag in (1, 3)
        guid = struct.pack(order + "IHH", tag, 0x721 if ambisonic else 0, 0x11D3 if ambisonic else 0x10)
        guid += AMBISONIC if ambisonic else MICROSOFT
        form = struct.pack(order + "H", 0xFFFE) + fields + struct.pack(order + "HHI", 22, bits, 0) + guid
    else:
        form = struct.pack(order + "H", tag) + fields + (struct.pack(order + "H", 0) if style < 0.5 else b"")

    def chunk(mark, content, size=None):
        return mark + struct.pack(order + "I", len(content) if size is None else size) + content + b"\0" * (len(content) % 2)

    def others():
        out = b""
        for _ in range(int(rng.choice([0, 0, 1, 3]))):
            mark = [b"LIST", b"JUNK", b"bext", b"abcd", b"iXML", b"PAD ", b"id3 "][int(rng.integers(7))]
            content = rng.integers(32, 127, int(rng.integers(0, 40)) if mark not in (b"bext", b"LIST") else 604, np.uint8).tobytes()
            out += chunk(mark, b"INFO" + content if mark == b"LIST" else content)
        return out

    size = [None, None, None, 0xFFFFFFFF, len(samples) + 1000, len(samples) // 2, 0][int(rng.integers(7))]
    data = chunk(b"data", samples, size)
    body = b"WAVE" + others() + chunk(b"fmt ", form) + others()
    if tag != 1 and rng.random() < 0.5:
        body += chunk(b"fact", struct.pack(order + "I", frames))
    body += data + (others() if size in (None, len(samples) // 2) else b"")
    size = [len(body), len(body), 0, 8, 0xFFFFFFFF][int(rng.integers(5))]
    file = (b"RIFX" if order == ">" else b"RIFF") + struct.pack(order + "I", size) + body
    return file[:int(rng.integers(len(file)))] if rng.random() < 0.05 else file


def written_wav():
    subtype = str(rng.choice(["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"]))
    file = io.BytesIO()
    shape = (int(rng.integers(0, 3000)), int(rng.integers(1, 9)))
    soundfile.write(file, rng.standard_normal(shape) / 3, int(rng.choice(RATES)), subtype=subtype,
                    format=str(rng.choice(["WAV", "WAVEX"])))
    return file.getvalue()


def signal(frames, channels, bits):
    """Integers of `bits` with what encoders look for."""
    most = 1 << (bits - 1)
    t = np.arange(frames)[:, None]
    kind = int(rng.integers(8))
    if kind == 0:
        values = rng.integers(-most, most, (frames, channels))
    elif kind == 1:
        values = np.full((frames, channels), int(rng.integers(-most, most)))
    elif kind == 2:
        values = np.zeros((frames, channels), np.int64)
    elif kind == 3:
        values = rng.integers(-most >> 3, most >> 3, (frames, channels)) << 3  # bits that are always 0
    elif kind == 4:
        values = rng.choice([-most, most - 1, 0], (frames, channels))
    else:
        values = most * 0.7 * np.sin(t * rng.random((1, channels)) * (0.2 if kind == 5 else 2)) + rng.standard_normal((frames, channels)) * most / 500
        if kind == 7:  # channels that resemble each other
            values = values[:, :1] + rng.standard_normal((frames, channels)) * most / 900
        values = np.round(values)
    return np.clip(values, -most, most - 1).astype(np.int64)


def written_flac():
    subtype, bits = [("PCM_S8", 8), ("PCM_16", 16), ("PCM_24", 24)][int(rng.integers(3))]
    frames = int(rng.choice([1, 15, 16, 17, 4095, 4096, 4097, 9999]))
    values = signal(frames, int(rng.choice([1, 2, 2, 2, 3, 8])), bits)
    file = io.BytesIO()
    soundfile.write(file, (values << (32 - bits)).astype(np.int32), int(rng.choice(RATES)), subtype=subtype, format="FLAC",
                    compression_level=float(rng.random()))
    return file.getvalue()


class Bits:
    def __init__(self):
        self.parts = []

    def put(self, value, size):
        if size:
            self.parts.append(format(int(value) & ((1 << size) - 1), f"0{size}b"))

    def unary(self, value):
        self.parts.append("0" * int(value) + "1")

    def bytes(self):
        text = "".join(self.parts)
        text += "0" * (-len(text) % 8)
        return int("1" + text, 2).to_bytes(len(text) // 8 + 1, "big")[1:]


def crc(data, polynomial, size):
    value = 0
    for byte in data:
        value ^= byte << (size - 8)
        for _ in range(8):
            value = (value << 1) ^ polynomial if value >> (size - 1) else value << 1
            value &= (1 << size) - 1
    return value


def residual(bits, values, order, block):
    wide = int(rng.integers(2))
    bits.put(wide, 2)
    orders = [p for p in range(7) if block % (1 << p) == 0 and block >> p >= order]
    partition_order = int(rng.choice(orders))
    bits.put(partition_order, 4)
    at = 0
    for index in range(1 << partition_order):
        part = values[at:at + (block >> partition_order) - (order if index == 0 else 0)]
        at += len(part)
        size = max((int(value).bit_length() + 1 for value in part), default=0)
        if rng.random() < 0.2 and size < 32:
            bits.put(31 if wide else 15, 4 + wide)
            if all(value == 0 for value in part):
                size = 0
            bits.put(size, 5)
            for value in part:
                bits.put(value, size)
            continue
        mean = sum(abs(int(value)) for value in part) // max(len(part), 1)
        parameter = min(max(mean.bit_length() + int(rng.integers(-1, 3)), 0), 30 if wide else 14)
        bits.put(parameter, 4 + wide)
        for value in part:
            value = int(value)
            folded = value << 1 if value >= 0 else (-value << 1) - 1
            bits.unary(folded >> parameter)
            bits.put(folded, parameter)


def subframe(bits, values, size):
    values = [int(value) for value in values]
    bits.put(0, 1)
    wasted = 0
    if any(values) and rng.random() < 0.7:
        while all(value >> wasted & 1 == 0 for value in values):
            wasted += 1
    values, size, block = [value >> wasted for value in values], size - wasted, len(values)
    kinds = ["verbatim", "fixed", "lpc"] + (["constant"] * 3 if len(set(values)) == 1 else [])
    kind = str(rng.choice(kinds))
    order = int(rng.integers(0, 5)) if kind == "fixed" else min(int(rng.integers(1, 33)), block - 1)

    def head(code):
        bits.put(code, 6)
        bits.put(wasted > 0, 1)
        if wasted:
            bits.unary(wasted - 1)

    if kind == "constant":
        head(0)
        bits.put(values[0], size)
        return
    if kind == "fixed":
        weights, shift = [[], [1], [2, -1], [3, -3, 1], [4, -6, 4, -1]][order], 0
    elif kind == "lpc":
        precision, shift = int(rng.integers(2, 16)), int(rng.integers(0, 15))
        weights = rng.integers(-1 << (precision - 1), 1 << (precision - 1), order)
        weights = (weights // int(rng.choice([1, 8, 64]))).tolist()
    if kind != "verbatim":
        sums = [sum(weight * values[at - 1 - index] for index, weight in enumerate(weights)) for at in range(order, block)]
        rest = [value - (total >> shift) for value, total in zip(values[order:], sums)]
        if max((abs(value) for value in rest), default=0) >= 1 << min(size + 4, 30):
            kind = "verbatim"
    if kind == "verbatim":
        head(1)
        for value in values:
            bits.put(value, size)
        return
    head(8 + order if kind == "fixed" else 31 + order)
    for value in values[:order]:
        bits.put(value, size)
    if kind == "lpc":
        bits.put(precision - 1, 4)
        bits.put(shift, 5)
        for weight in weights:
            bits.put(weight, precision)
    residual(bits, rest, order, block)


def utf8(value):
    if value < 0x80:
        return bytes([value])
    return chr(value).encode() if not 0xD800 <= value < 0xE000 else chr(value - 0x800).encode()


def coded_flac():
    """A FLAC file of our own: blocks of any size, all kinds of subframes, and codes that libFLAC does not write."""
    size, channels, rate = int(rng.choice([8, 16, 24])), int(rng.choice([1, 2, 2, 2, 5])), int(rng.choice(RATES))
    blocks = [int(rng.choice([16, 192, 256, 100, 33, 576])) for _ in range(int(rng.integers(1, 5)))]
    values = signal(sum(blocks), channels, size)
    total = sum(blocks)
    information = struct.pack(">HH", 16, 65535) + bytes(6)
    information += (rate << 44 | (channels - 1) << 41 | (size - 1) << 36 | total).to_bytes(8, "big") + bytes(16)
    pad = rng.random() < 0.5
    file = b"fLaC" + bytes([0 if pad else 0x80]) + len(information).to_bytes(3, "big") + information
    if pad:
        file += bytes([0x81]) + (20).to_bytes(3, "big") + bytes(20)
    at = 0
    for block in blocks:
        part = values[at:at + block]
        head = Bits()
        head.put(0x7FFC, 15)
        head.put(1, 1)
        known = {192: 1, 576: 2, 256: 8}
        code = known[block] if block in known and rng.random() < 0.5 else int(rng.choice([6, 7]))
        code = 7 if code == 6 and block > 256 else code
        head.put(code, 4)
        rate_code = int(rng.choice([0, 13 if rate < 65536 else 14, 14 if rate % 10 == 0 else 0]))
        head.put(rate_code, 4)
        coding = int(rng.choice([1, 8, 9, 10])) if channels == 2 else channels - 1
        head.put(coding, 4)
        head.put(int(rng.choice([0, {8: 1, 16: 4, 24: 6}[size]])), 3)
        head.put(0, 1)
        head = head.bytes() + utf8(at)
        if code in (6, 7):
            head += (block - 1).to_bytes(code - 5, "big")
        if rate_code:
            head += (rate if rate_code == 13 else rate // 10).to_bytes(2, "big")
        head += bytes([crc(head, 0x07, 8)])
        planes = [part[:, index] for index in range(channels)]
        sizes = [size] * channels
        if coding >= 8:
            left, right = planes
            planes = [[left, left - right], [left - right, right], [(left + right) >> 1, left - right]][coding - 8]
            sizes = [[size, size + 1], [size + 1, size], [size, size + 1]][coding - 8]
        bits = Bits()
        for plane, own in zip(planes, sizes):
            subframe(bits, plane, own)
        frame = head + bits.bytes()
        file += frame + struct.pack(">H", crc(frame, 0x8005, 16))
        at += block
    # Held to soundfile below, and to what went in.
    want = soundfile.read(io.BytesIO(file), dtype="float32", always_2d=True)[0]
    assert np.array_equal(want, values.astype(np.float32) / np.float32(1 << (size - 1))), "the file is right"
    return file


def mixed(samples, step):
    if step.get("channels") == "all":
        return samples.T
    if step.get("channels") == "one":
        return samples[:, step["channel"]]
    return samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]


def padded(row, length):
    row = row[..., :length]
    return np.pad(row, [(0, 0)] * (row.ndim - 1) + [(0, length - row.shape[-1])])


refused, several = 0, []
for index in range(count):
    file = [wav, wav, written_wav, written_flac, coded_flac][index % 5]()
    try:
        samples, rate = soundfile.read(io.BytesIO(file), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError:
        refused += 1
        continue
    step = {"step": "audio"}
    choice = rng.random()
    if choice < 0.3:
        step["channels"] = "all"
    elif choice < 0.5:
        step.update(channels="one", channel=int(rng.integers(samples.shape[1])))
    with np.errstate(all="ignore"):
        row = mixed(samples, step)
    if rng.random() < 0.3:
        step["length"] = int(rng.integers(1, 6000))
    if rng.random() < 0.3:
        step["sample_rate"] = rate
    want = padded(row, step.get("length", row.shape[-1]))[None]
    lengths = np.array([min(row.shape[-1], want.shape[-1])], np.int64)
    data = texts([file])
    if rng.random() < 0.2:
        data, step["encoding"] = texts([base64.b64encode(file)]), str(rng.choice(["auto", "base64"]))
    elif rng.random() < 0.2:
        data = np.frombuffer(file, np.uint8)
    cases.add(step, {"audio": data},
              {"samples": want, "lengths": lengths, "sample_rate": np.array([rate], np.int64)})
    if samples.shape[1] == 2:
        several.append((file, samples, rate))
    if len(several) == 3:
        step = {"step": "audio", "channels": str(rng.choice(["all", "mean"]))}
        with np.errstate(all="ignore"):
            rows = [mixed(samples, step) for _, samples, _ in several]
        longest = max(row.shape[-1] for row in rows)
        cases.add(step, {"audio": texts([[file] for file, _, _ in several])}, {
            "samples": np.stack([padded(row, longest) for row in rows]),
            "lengths": np.array([row.shape[-1] for row in rows], np.int64),
            "sample_rate": np.array([rate for _, _, rate in several], np.int64),
        })
        several = []
print(f"{refused} of {count} files are refused by soundfile")

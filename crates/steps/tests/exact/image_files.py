"""Encoded files of many kinds, and the pixels that Pillow and OpenCV decode from them."""

import io
import struct
import sys

import cv2
import numpy as np
from PIL import Image, ImageOps

folder, kind, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random = np.random.default_rng(seed)
cv2.setNumThreads(1)


def side(most=96):
    return int(random.choice([random.integers(1, 20), random.integers(1, most)], p=[0.4, 0.6]))


def pixels(height, width, channels=3):
    content = random.integers(0, 4)
    if content == 0:
        return random.integers(0, 256, (height, width, channels), np.uint8)
    if content == 1:
        return (random.integers(0, 2, (height, width, channels)) * 255).astype(np.uint8)
    # Smooth, as photographs are.
    small = random.integers(0, 256, (max(1, height // 8), max(1, width // 8), channels), np.uint8)
    large = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, channels)
    noise = random.integers(-8, 9, large.shape) if content == 2 else 0
    return np.clip(large.astype(int) + noise, 0, 255).astype(np.uint8)


def jpeg():
    height, width = side(), side()
    options = {"quality": int(random.integers(1, 101)), "progressive": bool(random.integers(0, 2))}
    if random.integers(0, 3) == 0:
        options["restart_marker_blocks"] = int(random.integers(1, 8))
    if random.integers(0, 2):
        options["optimize"] = True
    if random.integers(0, 4) == 0:
        exif = Image.Exif()
        exif[0x0112] = int(random.integers(1, 9))
        options["exif"] = exif
    file = io.BytesIO()
    mode = random.integers(0, 8)
    if mode == 0:
        Image.fromarray(pixels(height, width, 1)[:, :, 0]).save(file, "JPEG", **options)
    elif mode == 1:
        Image.fromarray(pixels(height, width)).save(file, "JPEG", keep_rgb=True, subsampling=0, **options)
    elif mode in (2, 3, 4):  # OpenCV writes 4:1:1 and 4:4:0
        flags = [cv2.IMWRITE_JPEG_QUALITY, options["quality"], cv2.IMWRITE_JPEG_PROGRESSIVE, int(options["progressive"])]
        sampling = [0x411111, 0x420000 + 0x21, 0x111111, 0x211111, 0x221111, 0x121111, 0x440000]
        flags += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, [0x411111, 0x221111, 0x211111, 0x121111, 0x111111][random.integers(0, 5)]]
        flags += [cv2.IMWRITE_JPEG_RST_INTERVAL, int(random.integers(0, 9))]
        flags += [cv2.IMWRITE_JPEG_OPTIMIZE, int(random.integers(0, 2))]
        return cv2.imencode(".jpg", pixels(height, width), flags)[1].tobytes()
    else:
        Image.fromarray(pixels(height, width)).save(file, "JPEG", subsampling=int(random.integers(0, 3)), **options)
    return file.getvalue()


def decoded(file):
    image = Image.open(io.BytesIO(file))
    plain = np.asarray(image.convert("RGB"))
    upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    opencv = cv2.cvtColor(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    return plain, upright, opencv


with open(folder + "/cases", "wb") as output:
    for _ in range(count):
        file = globals()[kind]()
        output.write(struct.pack("<I", len(file)) + file)
        for image in decoded(file):
            output.write(struct.pack("<2I", image.shape[1], image.shape[0]) + image.tobytes())

"""Random pixels of many pairs of sizes, resized by Pillow and OpenCV."""

import struct
import sys

import cv2
import numpy as np
from PIL import Image

folder, library, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random = np.random.default_rng(seed)
cv2.setNumThreads(1)
FILTERS = {
    "pillow": ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"],
    "opencv": ["nearest", "linear", "cubic", "area"],
}[library]


def side():
    return int(random.choice([random.integers(1, 9), random.integers(1, 65), random.integers(1, 400)], p=[0.2, 0.5, 0.3]))


def sizes(index):
    height, width = side(), side()
    kind = index % 6
    if kind == 0:
        return height, width, height, side()
    if kind == 1:
        return height, width, side(), width
    if kind == 2:  # scales that are whole numbers
        down, across = random.integers(1, 6, 2)
        return min(height, 80) * int(down), min(width, 80) * int(across), min(height, 80), min(width, 80)
    if kind == 3:
        return min(height, 90) * 2, min(width, 90) * 2, min(height, 90), min(width, 90)
    return height, width, side(), side()


def pixels(height, width):
    kind = random.integers(0, 4)
    if kind == 0:  # extremes, where filters overshoot
        return (random.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    if kind == 1:
        return np.full((height, width, 3), random.integers(0, 256, 3), np.uint8)
    return random.integers(0, 256, (height, width, 3), np.uint8)


def resized(source, filter, width, height):
    if library == "pillow":
        return np.asarray(Image.fromarray(source).resize((width, height), getattr(Image.Resampling, filter.upper())))
    # Intel's library computes cubic otherwise, and not alike on all processors.
    cv2.ipp.setUseIPP(filter != "cubic")
    return cv2.resize(source, (width, height), interpolation=getattr(cv2, "INTER_" + filter.upper()))


with open(folder + "/cases", "wb") as file:
    for index in range(count):
        source_height, source_width, height, width = sizes(index)
        source = pixels(source_height, source_width)
        file.write(struct.pack("<4I", source_width, source_height, width, height) + source.tobytes())
        for filter in FILTERS:
            file.write(resized(source, filter, width, height).tobytes())

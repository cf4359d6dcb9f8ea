"""Pictures as the input of PaddleOCR's and rapidocr's text detectors."""

import sys

import cv2
import numpy as np

from cases import Cases

rng = np.random.default_rng(14)
cases = Cases(sys.argv[1], "cases")
is_whole = sys.argv[2] == "whole"


def resized(image, limit, limit_type):
    """DetResizeForTest.resize_image_type0."""
    height, width = image.shape[:2]
    ratio = 1.0
    if limit_type == "max" and max(height, width) > limit:
        ratio = float(limit) / max(height, width)
    elif limit_type == "min" and min(height, width) < limit:
        ratio = float(limit) / min(height, width)
    elif limit_type == "resize_long":
        ratio = float(limit) / max(height, width)
    height, width = int(height * ratio), int(width * ratio)
    height, width = max(int(round(height / 32) * 32), 32), max(int(round(width / 32) * 32), 32)
    return cv2.resize(image, (width, height))


if is_whole:
    from rapidocr.ch_ppocr_det.utils import DetPreProcess

count, held = (400 if is_whole else 40), 0
for index in range(count):
    height, width = (int(side) for side in rng.integers(8, rng.choice([50, 300, 1300]), 2))
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    limit, limit_type = int(rng.choice([64, 160, 320])), str(rng.choice(["max", "min", "resize_long"]))
    if max(height, width) * max(limit / min(height, width), 1) > 4000:
        continue
    scaled = resized(image, limit, limit_type).astype("float32")
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    paddle = (scaled * np.float32(1 / 255) - np.array(mean, np.float32)) / np.array(std, np.float32)
    rapid = (scaled * (1 / 255.0) - np.array(mean)) / np.array(std)
    if is_whole and limit_type != "resize_long":
        own = DetPreProcess(limit, limit_type, mean, std)(image)
        if own is not None and min(height, width) > 32:
            assert np.array_equal(own[0], rapid.transpose(2, 0, 1).astype(np.float32))
            held += 1
    base = {"step": "image", "library": "opencv", "order": "BGR", "input_order": "BGR", "resize": "multiple", "size": [limit],
            "limit_type": limit_type, "mean": mean, "std": std}
    for arithmetic, want in {"multiply": paddle, "multiply_float64": rapid}.items():
        cases.add({**base, "arithmetic": arithmetic}, {"image": image},
                  {"pixels": want.transpose(2, 0, 1)[None].astype(np.float32), "original_size": np.array([[height, width]])})
print(f"{count} pictures, {held} held to rapidocr")

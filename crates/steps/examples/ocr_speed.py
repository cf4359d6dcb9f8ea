"""The work of `ocr_speed.rs` in Python, one thread: `python ocr_speed.py FOLDER` writes the inputs there, and measures, with the packages of
tests/exact/requirements-ocr.txt."""

import os
import sys
import time

import cv2
import numpy as np

sys.path.append(os.path.join(os.path.dirname(__file__), "../tests/exact"))
from ocr_boxes import detected, recogniser_batch, rotated_crop, sorted_paddleocr

rng = np.random.default_rng(1)
cv2.setNumThreads(1)


def page():
    """A map of 960 × 736 with 40 lines of text, as a detector gives it, and the picture."""
    map, picture = np.zeros((960, 736), np.float32), np.full((960, 736, 3), 240, np.uint8)
    for line in range(20):
        for left in 30, 400:
            size, angle = (float(rng.integers(150, 300)), 16.0), float(rng.random() * 4 - 2)
            corners = cv2.boxPoints(((left + size[0] / 2, 30 + line * 46.0), size, angle))
            cv2.fillPoly(map, [np.round(corners * 16).astype(np.int32)], 0.9, shift=4)
            cv2.putText(picture, "Total 1,234.50 EUR", (left, 36 + line * 46), cv2.FONT_HERSHEY_SIMPLEX, 0.7, (20, 20, 20), 2)
    return np.clip(cv2.GaussianBlur(map, (0, 0), 1.5) + rng.random(map.shape) * 0.02, 0, 1).astype(np.float32), picture


map, picture = page()
boxes, _ = detected(map, map.shape)
boxes = boxes[sorted_paddleocr(boxes)]
for name, array in {"map": map, "picture": picture, "boxes": boxes}.items():
    with open(f"{sys.argv[1]}/{name}", "wb") as file:
        file.write(array.tobytes())


def batch():
    return recogniser_batch([np.ascontiguousarray(rotated_crop(picture, box)) for box in boxes], 48, 320, 3200)


prototypes, coefficients = rng.standard_normal((32, 160, 160)).astype(np.float32), rng.standard_normal((30, 32)).astype(np.float32)
corners = np.tile(np.array([[100, 100, 300, 260]], np.float32), (30, 1))
rows, columns = np.arange(640)[None, :, None], np.arange(640)[None, None, :]
scores = rng.standard_normal((19, 128, 128)).astype(np.float32)


def masks():
    """process_mask, with OpenCV in the place of torch."""
    sums = (coefficients @ prototypes.reshape(32, -1)).reshape(-1, 160, 160)
    large = np.stack([cv2.resize(own, (640, 640), interpolation=cv2.INTER_LINEAR) for own in sums])
    x1, y1, x2, y2 = np.split(corners[:, :, None], 4, 1)
    return (large > 0).astype(np.uint8) * ((columns >= x1) * (columns < x2) * (rows >= y1) * (rows < y2))


def classes():
    return np.stack([cv2.resize(own, (512, 512), interpolation=cv2.INTER_LINEAR) for own in scores]).argmax(0).astype(np.uint8)


for name, work in (
    ("boxes of a map", lambda: sorted_paddleocr(detected(map, map.shape)[0])),
    ("the same, in contours", lambda: sorted_paddleocr(detected(map, map.shape, slow=True)[0])),
    ("crops of a page", batch),
    ("masks of 30 boxes", masks),
    ("class map of 19 classes", classes),
):
    times = []
    for _ in range(60):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    times.sort()
    print(f"{name}: {times[0] * 1e6:.0f} µs, median {times[30] * 1e6:.0f}")

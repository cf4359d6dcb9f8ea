"""The work of `image_speed.rs` as people write it in Python, one thread: `python image_speed.py FILE.jpg`, with numpy,
opencv-python-headless and pillow (tests/exact/requirements.txt)."""

import io
import sys
import time

import cv2
import numpy as np
from PIL import Image

with open(sys.argv[1], "rb") as file:
    DATA = file.read()
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


def pillow():
    return Image.open(io.BytesIO(DATA)).convert("RGB")


def opencv():
    return cv2.imdecode(np.frombuffer(DATA, np.uint8), cv2.IMREAD_COLOR)


def planes(pixels):
    return np.ascontiguousarray(((pixels.astype(np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)[None])


def letterbox():
    pixels = cv2.copyMakeBorder(cv2.resize(opencv(), (640, 480)), 80, 80, 0, 0, cv2.BORDER_CONSTANT, value=(114,) * 3)
    return np.ascontiguousarray(pixels[:, :, ::-1].transpose(2, 0, 1)[None]).astype(np.float32) / 255


cv2.setNumThreads(1)
for name, work in (
    ("decode, Pillow", pillow),
    ("decode, OpenCV", opencv),
    ("224, Pillow bilinear, ImageNet", lambda: planes(np.asarray(pillow().resize((224, 224), Image.BILINEAR)))),
    ("224, OpenCV linear, ImageNet", lambda: planes(cv2.resize(opencv(), (224, 224))[:, :, ::-1])),
    ("letterbox 640", letterbox),
):
    times = []
    for _ in range(100):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    times.sort()
    print(f"{name}: {times[0] * 1e6:.0f} µs, median {times[50] * 1e6:.0f}")

"""Pictures of text, and the maps, boxes and scores that rapidocr makes of them."""

import os

# numpy's sort for AVX-512 and AVX2 is not stable, for which the upper corner of a diamond depends on the processor.
os.environ["NPY_DISABLE_CPU_FEATURES"] = "AVX512_SKX AVX512_ICL AVX512_SPR AVX2"

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr import RapidOCR

WORDS = "The quick brown fox jumps over 1,234.50 lazy dogs TOTAL Invoice No. 2026-11-30 www.example.com Straße naïve".split()


def picture(rng):
    """Lines of text of several sizes and angles, on a plain ground or a gradient."""
    height, width = (int(side) for side in rng.integers(40, 1200, 2))
    ground = np.array(rng.integers(120, 256, 3))
    image = np.clip(ground + np.linspace(0, rng.integers(-80, 60), width)[None, :, None] + np.zeros((height, 1, 1)), 0, 255).astype(np.uint8)
    image = Image.fromarray(image)
    for _ in range(int(rng.integers(0, 14))):
        font = ImageFont.load_default(int(rng.choice([12, 18, 26, 40, 70])))
        text = " ".join(rng.choice(WORDS, int(rng.integers(1, 6))))
        box = ImageDraw.Draw(image).textbbox((0, 0), text, font=font)
        layer = Image.new("L", (int(box[2]) + 4, int(box[3]) + 4))
        ImageDraw.Draw(layer).text((2, 2), text, 255, font=font)
        layer = layer.rotate(float(rng.choice([0, 0, 0, 90, rng.random() * 360, rng.random() * 10 - 5])), Image.BICUBIC, expand=True)
        place = tuple(int(side) for side in rng.integers(-40, 1100, 2))
        image.paste(tuple(int(value) for value in rng.integers(0, 90, 3)), place, layer)
    return cv2.cvtColor(np.asarray(image), cv2.COLOR_RGB2BGR)


def maps_of_pictures(rng, count):
    detector = RapidOCR(params={"Global.log_level": "critical", "EngineConfig.onnxruntime.intra_op_num_threads": 1})._load_det_model()
    session, maps = detector.session, []
    detector.session = lambda image: maps.append(session(image)) or maps[-1]
    for _ in range(count):
        image = picture(rng)
        result = detector(image)
        boxes = np.zeros((0, 4, 2), np.float32) if result.boxes is None else result.boxes
        yield maps.pop()[0], image.shape[:2], boxes, np.array(result.scores or [], np.float32)

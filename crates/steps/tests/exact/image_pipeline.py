"""Whole pipelines as public files write them: a JPEG file to the numbers of a model."""

import io
import json
import struct
import sys

import cv2
import numpy as np
from PIL import Image

folder, kind, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random = np.random.default_rng(seed)
cv2.setNumThreads(1)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def file():
    height, width = (int(value) for value in random.integers(16, 500, 2))
    small = random.integers(0, 256, (max(1, height // 8), max(1, width // 8), 3), np.uint8)
    pixels = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    output = io.BytesIO()
    Image.fromarray(pixels).save(output, "JPEG", quality=int(random.integers(30, 96)))
    return output.getvalue()


def arithmetic(image, spelling, scale, mean, std):
    """Pixels [height, width, 3] of uint8 as numbers."""
    mean32, std32 = np.array(mean, np.float32), np.array(std, np.float32)
    if spelling == "divide":
        return (image.astype(np.float32) / scale - mean32) / std32
    if spelling == "multiply":
        return (image.astype(np.float32) * (1 / scale) - mean32) / std32
    if spelling == "albumentations":
        mean32 *= scale
        std32 *= scale
        result = image.astype(np.float32)
        result -= mean32
        result *= np.reciprocal(std32, dtype=np.float32)
        return result
    if spelling == "float64":
        return (image / scale - np.array(mean)) / np.array(std)
    return ((image.astype(np.float64) * (1 / scale)).astype(np.float32) - mean32) / std32


def letterbox(image, size, colour, rounding, position, enlarge):
    """YOLO's, on an image in any order of channels."""
    height, width = image.shape[:2]
    ratio = min(size[0] / height, size[1] / width)
    if not enlarge:
        ratio = min(ratio, 1.0)
    rounded = (lambda value: int(round(value))) if rounding == "round" else int
    unpadded = rounded(width * ratio), rounded(height * ratio)
    across, down = size[1] - unpadded[0], size[0] - unpadded[1]
    if position == "centre":
        across, down = across / 2, down / 2
        top, bottom = int(round(down - 0.1)), int(round(down + 0.1))
        left, right = int(round(across - 0.1)), int(round(across + 0.1))
    else:
        top, bottom, left, right = 0, down, 0, across
    if (width, height) != unpadded:
        image = cv2.resize(image, unpadded, interpolation=cv2.INTER_LINEAR)
    return cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(colour,) * 3)


def cropped(image, height, width, rounding):
    half = (lambda rest: int(round(rest / 2.0))) if rounding == "round" else (lambda rest: rest // 2)
    top, left = half(image.shape[0] - height), half(image.shape[1] - width)
    return image[top : top + height, left : left + width]


def case(content):
    size = [int(random.integers(16, 300)), int(random.integers(16, 300))]
    settings = {"order": str(random.choice(["RGB", "BGR"])), "layout": str(random.choice(["NCHW", "NHWC"]))}
    resize = str(random.choice(["exact", "shortest", "letterbox"]))
    settings["resize"] = resize
    if resize == "letterbox" or random.integers(0, 2):
        settings["library"] = "opencv"
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        image = image if settings["order"] == "BGR" else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        resized = lambda width, height: cv2.resize(image, (width, height))
    else:
        filter = str(random.choice(["bilinear", "bicubic", "lanczos", "box", "hamming", "nearest"]))
        settings["filter"] = filter
        opened = Image.open(io.BytesIO(content)).convert("RGB")
        image = np.asarray(opened)
        order = 1 if settings["order"] == "RGB" else -1
        resized = lambda width, height: np.asarray(opened.resize((width, height), Image.Resampling[filter.upper()]))[..., ::order]
    if resize == "exact":
        settings["size"] = size
        image = resized(size[1], size[0])
    elif resize == "shortest":
        edge = size[0]
        height, width = image.shape[:2]
        settings["size"] = [edge]
        long = int(edge * max(height, width) / min(height, width))
        image = resized(edge, long) if width <= height else resized(long, edge)
        settings["crop"] = [int(random.integers(1, edge + 1)), int(random.integers(1, edge + 1))]
        settings["crop_rounding"] = str(random.choice(["round", "floor"]))
        image = cropped(image, *settings["crop"], settings["crop_rounding"])
    else:
        settings["size"] = size
        settings["letterbox_colour"] = int(random.integers(0, 256))
        settings["letterbox_rounding"] = str(random.choice(["round", "int"]))
        settings["letterbox_position"] = str(random.choice(["centre", "top_left"]))
        settings["letterbox_enlarge"] = bool(random.integers(0, 2))
        options = [settings["letterbox_" + name] for name in ("colour", "rounding", "position", "enlarge")]
        image = letterbox(image, size, *options)
    settings["datatype"] = str(random.choice(["FP32", "FP16", "UINT8"]))
    if settings["datatype"] == "UINT8":
        numbers = image
    else:
        settings["arithmetic"] = str(random.choice(["divide", "multiply", "albumentations", "float64", "transformers"]))
        settings["scale"] = float(random.choice([255.0, 127.5, 1.0, 256.0]))
        choice = random.integers(0, 3)
        settings["mean"], settings["std"] = [(MEAN, STD), ([0.5] * 3, [0.5] * 3), ([0, 0, 0], [1, 1, 1])][choice]
        numbers = arithmetic(image, settings["arithmetic"], settings["scale"], settings["mean"], settings["std"])
        numbers = numbers.astype(np.float32 if settings["datatype"] == "FP32" else np.float16)
    return settings, numbers if settings["layout"] == "NHWC" else numbers.transpose(2, 0, 1)


def preset(content):
    import transformers

    name = str(random.choice(["ViT", "CLIP", "ConvNext", "Detr"]))
    settings = {}
    if name == "ViT":
        settings["size"] = {"height": int(random.integers(16, 300)), "width": int(random.integers(16, 300))}
    elif name == "CLIP":
        edge = int(random.integers(16, 300))
        settings["size"] = {"shortest_edge": edge}
        settings["crop_size"] = {"height": int(random.integers(1, edge + 1)), "width": int(random.integers(1, edge + 1))}
    elif name == "ConvNext":
        settings["size"] = {"shortest_edge": int(random.choice([random.integers(16, 384), 384, 400]))}
        settings["crop_pct"] = float(random.choice([0.875, 0.95, 1.0]))
    else:
        settings["size"] = {"shortest_edge": int(random.integers(16, 300)), "longest_edge": int(random.integers(300, 500))}
    settings["resample"] = int(random.integers(0, 6))
    if random.integers(0, 3) == 0:
        settings["image_mean"], settings["image_std"] = MEAN, STD
    if random.integers(0, 6) == 0:
        settings["do_normalize"] = False
    if random.integers(0, 4) == 0:
        settings["rescale_factor"] = 1 / 127.5
    processor = getattr(transformers, name + "ImageProcessor")(**settings)
    image = Image.open(io.BytesIO(content)).convert("RGB")
    pixels = processor(image, return_tensors="np")["pixel_values"][0]
    written = processor.to_dict() if random.integers(0, 2) else {"image_processor_type": name + "ImageProcessor", **settings}
    return written, np.asarray(pixels, np.float32)


def write(output, content):
    output.write(struct.pack("<I", len(content)) + content)


with open(folder + "/cases", "wb") as output:
    for _ in range(count):
        content = file()
        settings, numbers = globals()[kind](content)
        write(output, content)
        write(output, json.dumps(settings).encode())
        write(output, np.ascontiguousarray(numbers).tobytes())

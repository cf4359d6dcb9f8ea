"""Boxes cut out of pictures: turned by any angle, in perspective, beyond borders, as wide as the picture, of few pixels; upright ones;
and the batches of PP-OCR's recogniser and classifier."""

import sys

import cv2
import numpy as np
from PIL import Image

from cases import Cases
from ocr_boxes import recogniser_batch, rotated_crop

rng = np.random.default_rng(13)
cases = Cases(sys.argv[1], "cases")
is_whole = sys.argv[2] == "whole"
count = 1000 if is_whole else 50
PPOCR = {"library": "opencv", "order": "BGR", "input_order": "BGR", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}


def picture(height, width):
    kind = rng.integers(0, 3)
    if kind == 0:  # extremes, where the cubic filter overshoots
        return (rng.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    if kind == 1:
        return rng.integers(0, 256, (height, width, 3), np.uint8)
    image = np.full((height, width, 3), 230, np.uint8)
    for _ in range(6):
        place = (int(rng.integers(-20, width)), int(rng.integers(0, height + 20)))
        cv2.putText(image, "Text 123", place, cv2.FONT_HERSHEY_SIMPLEX, float(rng.random() * 2 + 0.3), [int(v) for v in rng.integers(0, 200, 3)], 2)
    return image


def quad(height, width):
    kind = rng.integers(0, 5)
    if kind == 0:  # upright
        left, top = rng.integers(0, width), rng.integers(0, height)
        box = np.array([[left, top], [left + rng.integers(4, 200), top], [0, 0], [left, top + rng.integers(4, 60)]])
        box[2] = box[1, 0], box[3, 1]
    elif kind == 1:
        box = np.array([[0, 0], [width, 0], [width, height], [0, height]])
    else:
        size = rng.choice([5, 20, 80, 300], 2) * (0.5 + rng.random(2))
        angle = np.deg2rad(rng.choice([0, 90, 45, rng.random() * 360, rng.random() * 6 - 3]))
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        box = (np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * size / 2) @ turn + rng.random(2) * [width, height]
        if kind == 4:  # in perspective
            box += rng.standard_normal((4, 2)) * size.min() * 0.08
    return (box if rng.random() < 0.2 else np.round(box)).astype(np.float32)


refused = 0


def is_refused(box):
    """OpenCV then takes the matrix of least squares: three corners lie on a line, or nearly."""
    return cv2.getPerspectiveTransform(box, np.array([[0, 0], [9, 0], [9, 9], [0, 9]], np.float32))[2, 2] != 1


def cut(image, make):
    """Boxes that have a crop, and the crops."""
    global refused
    boxes, crops = [], []
    for _ in range(int(rng.integers(0, 6))):
        box = make(*image.shape[:2])
        if box.ndim == 2 and is_refused(box):
            refused += 1
            continue
        try:
            crop = rotated_crop(image, box) if box.ndim == 2 else upright(image, box)
        except cv2.error:
            continue
        if crop.size and crop.shape[:2] != image.shape[:2] or box.ndim == 1 and crop.size:
            boxes.append(box)
            crops.append(np.ascontiguousarray(crop))
    return boxes, crops


def box(height, width):
    left, top = rng.random(2) * [width, height] - 5
    return np.array([left, top, left + rng.random() * 100, top + rng.random() * 100], np.float32)


def upright(image, corners):
    left, top, right, bottom = (max(int(side), 0) for side in corners)
    return image[top:bottom, left:right]


def padded(rows, shape):
    width = max(len(row) for row in rows)
    boxes = np.zeros((len(rows), width, *shape), np.float32)
    for place, row in zip(boxes, rows):
        place[:len(row)] = np.array(row, np.float32).reshape(-1, *shape)
    return boxes


crop_count, byte_count = 0, 0
for index in range(count):
    side = int(rng.choice([8, 60, 300, 700]))
    height, width, rows = int(rng.integers(4, side + 4)), int(rng.integers(4, side + 4)), int(rng.choice([1, 1, 3]))
    images = np.stack([picture(height, width) for _ in range(rows)])
    found = [cut(image, quad) for image in images]
    crops = [crop for _, own in found for crop in own]
    inputs = {"image": images, "boxes": padded([boxes for boxes, _ in found], (4, 2)), "counts": np.array([len(own) for _, own in found])}
    places = {"image_index": np.repeat(np.arange(rows), inputs["counts"]),
              "crop_size": np.array([crop.shape[:2] for crop in crops], np.int64).reshape(-1, 2)}
    max_width = int(rng.choice([400, 3200]))
    cases.add({"step": "crop", **PPOCR, "size": [48, 320], "resize": "widest", "max_width": max_width}, inputs,
              {"crops": recogniser_batch(crops, 48, 320, max_width), **places})
    cases.add({"step": "crop", **PPOCR, "size": [48, 192], "resize": "pad"}, inputs, {"crops": recogniser_batch(crops, 48, 192)})
    # The bytes of each crop by itself.
    for image, (boxes, own) in zip(images, found):
        for corners, crop in zip(boxes, own):
            size = list(crop.shape[:2])
            step = {"step": "crop", "library": "opencv", "size": size, "datatype": "UINT8", "layout": "NHWC"}
            cases.add(step, {"image": image, "boxes": corners[None]}, {"crops": crop[None]})
            crop_count, byte_count = crop_count + 1, byte_count + crop.size
    # Upright boxes.
    found = [cut(image, box) for image in images]
    crops = [crop for _, own in found for crop in own]
    inputs = {"image": images, "boxes": padded([boxes for boxes, _ in found], (4,)), "counts": np.array([len(own) for _, own in found])}
    for library, resized in {"opencv": lambda crop: cv2.resize(crop, (32, 24)),
                             "pillow": lambda crop: np.asarray(Image.fromarray(crop).resize((32, 24), Image.BILINEAR))}.items():
        want = np.array([resized(crop) for crop in crops], np.uint8).reshape(-1, 24, 32, 3)
        step = {"step": "crop", "library": library, "size": [24, 32], "datatype": "UINT8", "layout": "NHWC"}
        cases.add(step, inputs, {"crops": want})
        cases.add({**step, "datatype": "FP32", "layout": "NCHW"}, inputs, {"crops": want.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)})
print(f"{crop_count} crops of {byte_count} bytes; {refused} boxes without a perspective")

if is_whole:
    import rapidocr_maps
    from rapidocr.utils.process_img import get_rotate_crop_image

    held = 0
    for _ in range(200):
        image = rapidocr_maps.picture(rng)
        for _ in range(20):
            corners = quad(*image.shape[:2])
            if np.linalg.norm(corners[0] - corners[1]) >= 2 and np.linalg.norm(corners[0] - corners[3]) >= 2:
                assert np.array_equal(rotated_crop(image, corners), get_rotate_crop_image(image, corners))
                held += 1
    print(f"{held} crops held to rapidocr")

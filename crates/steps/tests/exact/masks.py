"""Masks of YOLO-seg networks, after the boxes of `detect`, and class maps, as Ultralytics and transformers compute them with torch: restated
here in numpy, in FP32 and in torch's order of operations."""

import sys

import cv2
import numpy as np
from PIL import Image

from cases import Cases

rng = np.random.default_rng(15)
cases = Cases(sys.argv[1], "cases")
count = 400 if sys.argv[2] == "whole" else 40
F = np.float32


def axis(source, target):
    """Neighbours and weights of torch's bilinear interpolation without aligned corners."""
    place = np.maximum((F(source) / F(target)) * (np.arange(target, dtype=F) + F(0.5)) - F(0.5), F(0))
    first = np.minimum(place.astype(np.int64), source - 1)
    weight = np.clip(place - first.astype(F), F(0), F(1))
    return first, np.minimum(first + 1, source - 1), F(1) - weight, weight


def interpolate(planes, height, width):
    """F.interpolate(planes[None], (height, width), mode="bilinear", align_corners=False)[0]"""
    (y0, y1, u0, u1), (x0, x1, v0, v1) = axis(planes.shape[1], height), axis(planes.shape[2], width)
    along = v0 * planes[:, :, x0] + v1 * planes[:, :, x1]
    result = u0[:, None] * along[:, y0] + u1[:, None] * along[:, y1]
    assert result.dtype == F
    return result


def crop_mask(masks, boxes):
    _, height, width = masks.shape
    x1, y1, x2, y2 = np.split(boxes[:, :, None], 4, 1)
    r, c = np.arange(width, dtype=F)[None, None, :], np.arange(height, dtype=F)[None, :, None]
    return masks * ((r >= x1) * (r < x2) * (c >= y1) * (c < y2))


def products(prototypes, coefficients):
    """In the order of the prototypes; BLAS may add them in another."""
    sums = np.zeros((len(coefficients), *prototypes.shape[1:]), F)
    for place in range(len(prototypes)):
        sums += coefficients[:, place, None, None] * prototypes[place]
    return sums


def process_mask(prototypes, coefficients, boxes, shape, upsample):
    masks = products(prototypes, coefficients)
    if upsample:
        masks = interpolate(masks, *shape)
    else:
        ratio = F([masks.shape[2] / shape[1], masks.shape[1] / shape[0]] * 2)
        boxes = boxes * ratio
    return crop_mask((masks > 0).astype(np.uint8), boxes)


def process_mask_native(prototypes, coefficients, boxes, shape):
    masks = products(prototypes, coefficients)
    _, mh, mw = masks.shape
    gain = min(mh / shape[0], mw / shape[1])
    pad = [(mw - shape[1] * gain) / 2, (mh - shape[0] * gain) / 2]
    top, left = round(pad[1] - 0.1), round(pad[0] - 0.1)
    bottom, right = mh - round(pad[1] + 0.1), mw - round(pad[0] + 0.1)
    return crop_mask((interpolate(masks[:, top:bottom, left:right], *shape) > 0).astype(np.uint8), boxes)


def sigmoid(values):
    return (1 / (1 + np.exp(-values.astype(np.float64)))).astype(F)


def boxes_of(n, height, width):
    corner = rng.random((n, 2)) * [width, height] - 6
    return np.concatenate([corner, corner + rng.random((n, 2)) * [width, height] * 0.6], 1).astype(F)


for index in range(count):
    rows, n, m = int(rng.choice([1, 2])), int(rng.integers(0, 6)), int(rng.choice([1, 8, 32]))
    height, width = int(rng.choice([96, 160, 320])), int(rng.choice([96, 160]))
    mh, mw = height // 4, width // 4
    # Smooth, as those of a network.
    prototypes = np.stack([[cv2.GaussianBlur(rng.standard_normal((mh, mw)).astype(F), (0, 0), 3) for _ in range(m)] for _ in range(rows)])
    coefficients = rng.standard_normal((rows, n, m)).astype(F)
    boxes = np.stack([boxes_of(n, height, width) for _ in range(rows)]).reshape(rows, n, 4)
    counts = rng.integers(0, n + 1, rows)
    used = (np.arange(n)[None] < counts[:, None])[:, :, None, None]
    inputs = {"prototypes": prototypes, "coefficients": coefficients, "boxes": boxes}
    step = {"step": "masks", "input_size": [height, width]}
    for name, upsample in {"input": True, "prototype": False}.items():
        want = np.stack([process_mask(*row, (height, width), upsample) for row in zip(prototypes, coefficients, boxes)])
        cases.add({**step, "resolution": name}, inputs, {"masks": want})
        cases.add({**step, "resolution": name}, {**inputs, "counts": counts}, {"masks": (want * used).astype(np.uint8)})
    sums = np.stack([interpolate(sigmoid(products(*row)), height, width) for row in zip(prototypes, coefficients)])
    if n and np.abs(sums - 0.5).min() > 1e-6:
        want = np.stack([crop_mask((own > 0.5).astype(np.uint8), box) for own, box in zip(sums, boxes)])
        cases.add({**step, "activation": "sigmoid", "threshold": 0.5}, inputs, {"masks": want})
    size = int(rng.integers(40, 300)), int(rng.integers(40, 300))
    native = {**inputs, "boxes": np.stack([boxes_of(n, *size) for _ in range(rows)]).reshape(rows, n, 4)}
    want = np.stack([process_mask_native(*row, size) for row in zip(prototypes, coefficients, native["boxes"])])
    cases.add({"step": "masks", "resolution": "original"}, {**native, "original_size": np.array([size] * rows)}, {"masks": want})

    # The coefficients of the boxes that `detect` keeps.
    classes, candidates = int(rng.choice([1, 3])), int(rng.choice([1, 40]))
    rest = rng.standard_normal((rows, m, candidates)).astype(F)
    score = (rng.random((rows, classes, candidates)) * 0.6).astype(F)
    box = np.concatenate([rng.random((rows, 2, candidates)) * 300, rng.random((rows, 2, candidates)) * 40 + 1], 1).astype(F)
    v8 = np.concatenate([box, score, rest], 1)
    kept = [[place for place in np.argsort(-own.max(0), kind="stable") if own[:, place].max() > F(0.3)] for own in score]
    most = max(len(own) for own in kept)
    want, scores = np.zeros((rows, most, m), F), np.zeros((rows, most), F)
    for row, own in enumerate(kept):
        want[row, :len(own)], scores[row, :len(own)] = rest[row][:, own].T, score[row].max(0)[own]
    base = {"step": "detect", "score_threshold": 0.3, "iou_threshold": 1.0, "nms": "agnostic"}
    outputs = {"coefficients": want, "scores": scores}
    cases.add({**base, "layout": "yolov8", "class_count": classes}, {"predictions": v8}, outputs)
    transposed = np.ascontiguousarray(v8.transpose(0, 2, 1))
    cases.add({**base, "layout": "yolov8_rows", "class_count": classes}, {"predictions": transposed}, outputs)
    v5 = np.insert(transposed, 4, 1, 2)
    cases.add({**base, "layout": "yolov5", "class_count": classes}, {"predictions": v5}, outputs)
    end = np.concatenate([transposed[:, :, :4], score.max(1)[:, :, None], score.argmax(1)[:, :, None].astype(F), transposed[:, :, 4 + classes:]], 2)
    cases.add({**base, "layout": "end_to_end"}, {"predictions": end}, outputs)

    # Semantic segmentation.
    classes = int(rng.choice([1, 2, 19, 150]))
    h, w = (int(side) for side in rng.integers(1, 80, 2))
    scores = rng.standard_normal((rows, classes, h, w)).astype(F)
    if rng.random() < 0.3:
        scores = np.round(scores)
    image = int(rng.integers(1, 200)), int(rng.integers(1, 200))
    sizes = np.array([image] * rows)
    best = scores.argmax(1)
    cases.add({"step": "class_map", "datatype": "INT64"}, {"scores": scores}, {"classes": best})
    want = np.stack([cv2.resize(own.astype(np.uint8), image[::-1], interpolation=cv2.INTER_NEAREST) for own in best])
    inputs = {"scores": scores, "original_size": sizes}
    cases.add({"step": "class_map", "resize": "classes"}, inputs, {"classes": want.reshape(rows, *image)})
    want = np.stack([np.asarray(Image.fromarray(own.astype(np.uint8)).resize(image[::-1], Image.NEAREST)) for own in best])
    cases.add({"step": "class_map", "resize": "classes", "library": "pillow"}, inputs, {"classes": want})
    want = np.stack([interpolate(own, *image).argmax(0) for own in scores]).astype(np.int32)
    cases.add({"step": "class_map", "resize": "scores", "datatype": "INT32"}, inputs, {"classes": want})

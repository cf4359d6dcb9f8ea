"""Maps of a text detector and their boxes: rotated and touching ones, at borders, as wide as the map, none, noise; in the whole form
those that rapidocr's network makes of pictures, and rapidocr's own boxes."""

import sys

import cv2
import numpy as np

from cases import Cases
from ocr_boxes import detected, sorted_paddleocr, sorted_rapidocr

rng = np.random.default_rng(12)
cases = Cases(sys.argv[1], "cases")
is_whole = sys.argv[2] == "whole"
count = 1500 if is_whole else 60
box_count = 0


def quadrilateral(map, centre, size, angle, value):
    points = cv2.boxPoints((centre, size, angle))
    cv2.fillPoly(map, [np.round(points * 16).astype(np.int32)], float(value), shift=4)


def make(kind, height, width):
    map = np.zeros((height, width), np.float32)
    if kind == "noise":
        return (rng.random((height, width)) ** rng.choice([1, 3, 8])).astype(np.float32)
    if kind == "blobs":
        noise = cv2.GaussianBlur(rng.standard_normal((height, width)).astype(np.float32), (0, 0), float(rng.choice([2, 4, 9])))
        return np.clip(0.5 + noise / (3 * noise.std()), 0, 1).astype(np.float32)
    if kind == "whole":
        return np.full((height, width), rng.choice([0.2, 0.9, 1.0]), np.float32)
    for _ in range(int(rng.integers(0, 25))):
        centre = rng.random(2) * [width, height]
        if kind == "border":
            centre[rng.integers(0, 2)] = rng.choice([0, height, width])
        size = (float(rng.choice([3, 5, 9, 20, 60, 200]) * (0.5 + rng.random())), float(rng.choice([3, 4, 6, 12, 30]) * (0.5 + rng.random())))
        angle = float(rng.choice([0, 90, 45, rng.random() * 180, rng.random() * 4 - 2]))
        if kind == "whole numbers":
            centre, size = np.round(centre), (round(size[0]), round(size[1]))
        quadrilateral(map, centre.tolist(), size, angle, rng.choice([1.0, 0.9, 0.7, 0.5, 0.35]))
    if kind == "rings":
        for inset in range(0, min(height, width) // 2 - 2, int(rng.integers(3, 9))):
            cv2.rectangle(map, (inset, inset), (width - 1 - inset, height - 1 - inset), 0.9, int(rng.integers(1, 3)))
    if rng.random() < 0.6:
        map = cv2.GaussianBlur(map, (0, 0), float(rng.choice([0.6, 1.2, 2.5])))
    return np.clip(map + rng.standard_normal(map.shape) * rng.choice([0, 0.01, 0.05]), 0, 1).astype(np.float32)


def add(maps, sizes, options, sort):
    global box_count
    names = {"unclip_ratio": "unclip_ratio", "box_threshold": "box_threshold", "threshold": "threshold", "dilate": "dilate",
             "max_candidates": "max_candidates", "min_size": "min_size"}
    step = {"step": "text_boxes", "sort": sort, "score_mode": "slow" if options.get("slow") else "fast"}
    step.update({names[name]: value for name, value in options.items() if name in names})
    rows = []
    for map, size in zip(maps, sizes.tolist()):
        boxes, scores = detected(map[0], size, **options)
        order = {"paddleocr": sorted_paddleocr, "rapidocr": sorted_rapidocr, "none": lambda boxes: range(len(boxes))}[sort](boxes)
        rows.append((boxes[list(order)], scores[list(order)]))
        box_count += len(boxes)
    width = max(len(scores) for _, scores in rows)
    boxes, scores = np.zeros((len(rows), width, 4, 2), np.float32), np.zeros((len(rows), width), np.float32)
    for row, (own, own_scores) in enumerate(rows):
        boxes[row, :len(own)], scores[row, :len(own)] = own, own_scores
    # OpenCV adds up the pixels of a score in another order.
    cases.add(step, {"map": maps, "original_size": sizes},
              {"boxes": boxes, "scores": (scores, 2e-6, 0), "counts": np.array([len(own) for own, _ in rows])})


KINDS = ["boxes", "boxes", "boxes", "whole numbers", "border", "blobs", "noise", "rings", "whole"]
for index in range(count):
    rows, side = int(rng.choice([1, 1, 2])), int(rng.choice([16, 64, 160, 320] + ([640] if is_whole else [])))
    height, width = int(rng.integers(1, side + 1)), int(rng.integers(1, side + 1))
    maps = np.stack([make(KINDS[index % len(KINDS)], height, width)[None] for _ in range(rows)])
    sizes = rng.integers(1, 2000, (rows, 2)) if rng.random() < 0.5 else np.tile([[height, width]], (rows, 1))
    options = {"unclip_ratio": float(rng.choice([1.5, 1.6, 2.0])), "box_threshold": float(rng.choice([0.6, 0.5, 0.7, 0.3])),
               "threshold": float(rng.choice([0.3, 0.2, 0.5])), "dilate": bool(rng.random() < 0.4), "slow": bool(rng.random() < 0.3)}
    if rng.random() < 0.2:
        options.update(max_candidates=int(rng.choice([1, 5, 30])), min_size=int(rng.choice([1, 5])))
    add(maps, sizes, options, ["paddleocr", "rapidocr", "none"][index % 3])
print(f"{box_count} boxes in {count} tensors")

if is_whole:
    from rapidocr_maps import maps_of_pictures

    held, box_count = 0, 0
    for map, size, boxes, scores in maps_of_pictures(rng, 120):
        own, own_scores = detected(map[0], size, box_threshold=0.5, unclip_ratio=1.6, dilate=True)
        # rapidocr sorts its boxes, but not the scores.
        assert np.array_equal(own[list(sorted_rapidocr(own))], boxes) and np.array_equal(own_scores, scores)
        held += len(boxes)
        add(map[None], np.array([size]), {"box_threshold": 0.5, "unclip_ratio": 1.6, "dilate": True}, "rapidocr")
    print(f"{held} boxes held to rapidocr")

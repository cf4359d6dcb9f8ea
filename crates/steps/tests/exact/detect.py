"""Detections as public `model.py` files compute them: each variant as a function on numpy arrays in FP32, and OpenCV's own
suppression."""

import sys

import cv2
import numpy as np

from cases import Cases, texts

rng = np.random.default_rng(10)
cases = Cases(sys.argv[1], "cases")
count = 800 if sys.argv[2] == "whole" else 60
F = np.float32


# Suppressions.

def nms_torchvision(boxes, scores, threshold):
    """torchvision's nms_kernel on the CPU: FP32, but for the comparison with a double."""
    x1, y1, x2, y2 = boxes.T
    areas = (x2 - x1) * (y2 - y1)
    order = np.argsort(-scores, kind="stable")
    suppressed = np.zeros(len(boxes), bool)
    keep = []
    for position, i in enumerate(order):
        if suppressed[i]:
            continue
        keep.append(i)
        rest = order[position + 1:]
        width = np.maximum(F(0), np.minimum(x2[i], x2[rest]) - np.maximum(x1[i], x1[rest]))
        height = np.maximum(F(0), np.minimum(y2[i], y2[rest]) - np.maximum(y1[i], y1[rest]))
        shared = width * height
        with np.errstate(invalid="ignore"):
            overlap = shared / (areas[i] + areas[rest] - shared)
        suppressed[rest[overlap.astype(np.float64) > threshold]] = True
    return np.array(keep, np.int64)


def nms_numpy(boxes, scores, threshold, order, plus=0, epsilon=None, strict=False):
    """The loop that py-faster-rcnn and its copies have."""
    x1, y1, x2, y2 = boxes.T
    areas = (x2 - x1 + plus) * (y2 - y1 + plus)
    keep = []
    while order.size > 0:
        i = order[0]
        keep.append(i)
        rest = order[1:]
        width = np.maximum(0.0, np.minimum(x2[i], x2[rest]) - np.maximum(x1[i], x1[rest]) + plus)
        height = np.maximum(0.0, np.minimum(y2[i], y2[rest]) - np.maximum(y1[i], y1[rest]) + plus)
        shared = width * height
        union = areas[i] + areas[rest] - shared
        if epsilon is not None:
            union = union + epsilon
        with np.errstate(invalid="ignore"):
            overlap = shared / union
        assert overlap.dtype == F
        order = rest[overlap < threshold] if strict else rest[overlap <= threshold]
    return np.array(keep, np.int64)


def xyxy(boxes):
    out = np.empty_like(boxes)
    out[:, 0] = boxes[:, 0] - boxes[:, 2] / 2
    out[:, 1] = boxes[:, 1] - boxes[:, 3] / 2
    out[:, 2] = boxes[:, 0] + boxes[:, 2] / 2
    out[:, 3] = boxes[:, 1] + boxes[:, 3] / 2
    return out


# Whole variants. Each takes the numbers of one image.

def ultralytics(prediction, conf, iou, classes=None, agnostic=False, multi_label=False, nc=None, max_nms=30000, max_wh=7680, max_det=300):
    """ultralytics.utils.ops.non_max_suppression: prediction [4 + classes, boxes]."""
    nc = nc or prediction.shape[0] - 4
    x = prediction.T[prediction[4:4 + nc].max(0) > F(conf)]
    box, cls = xyxy(x[:, :4]), x[:, 4:4 + nc]
    if multi_label and nc > 1:
        i, j = np.nonzero(cls > F(conf))
        x = np.concatenate([box[i], cls[i, j, None], j[:, None].astype(F)], 1)
    else:
        j = cls.argmax(1) if len(cls) else np.zeros(0, int)
        x = np.concatenate([box, cls.max(1, initial=-np.inf)[:, None], j[:, None].astype(F)], 1)
    return finish(x, iou, classes, agnostic, max_nms, max_wh, max_det)


def finish(x, iou, classes, agnostic, max_nms, max_wh, max_det):
    if classes:
        x = x[np.isin(x[:, 5], classes)]
    if len(x) > max_nms:
        x = x[np.argsort(-x[:, 4], kind="stable")[:max_nms]]
    offset = x[:, 5:6] * F(0 if agnostic else max_wh)
    return x[nms_torchvision(x[:, :4] + offset, x[:, 4], iou)[:max_det]]


def yolov5(prediction, conf, iou, classes=None, agnostic=False, multi_label=False, max_det=300):
    """yolov5's non_max_suppression: prediction [boxes, 5 + classes], objectness times class."""
    x = prediction[prediction[:, 4] > F(conf)].copy()
    x[:, 5:] *= x[:, 4:5]
    box, cls = xyxy(x[:, :4]), x[:, 5:]
    if multi_label and cls.shape[1] > 1:
        i, j = np.nonzero(cls > F(conf))
        x = np.concatenate([box[i], cls[i, j, None], j[:, None].astype(F)], 1)
    else:
        j = cls.argmax(1) if len(cls) else np.zeros(0, int)
        x = np.concatenate([box, cls.max(1, initial=-np.inf)[:, None], j[:, None].astype(F)], 1)
        x = x[x[:, 4] > F(conf)]
    return finish(x, iou, classes, agnostic, 30000, 4096, max_det)


def scale_boxes(input_size, boxes, size, ratio_pad=None, rounded=True):
    """ultralytics' (rounded) and yolov5's scale_boxes, with clip_boxes."""
    if ratio_pad is None:
        gain = min(input_size[0] / size[0], input_size[1] / size[1])
        pad = (input_size[1] - size[1] * gain) / 2, (input_size[0] - size[0] * gain) / 2
        if rounded:
            pad = round(pad[0] - 0.1), round(pad[1] - 0.1)
    else:
        gain, pad = ratio_pad
    boxes = boxes.copy()
    boxes[:, [0, 2]] -= pad[0]
    boxes[:, [1, 3]] -= pad[1]
    boxes /= gain
    boxes[:, [0, 2]] = boxes[:, [0, 2]].clip(0, size[1])
    boxes[:, [1, 3]] = boxes[:, [1, 3]].clip(0, size[0])
    return boxes


def opencv_loop(prediction, conf, iou, factors=None, by_class=False):
    """The loop over all boxes with cv2.dnn.NMSBoxes; `factors` scales and truncates each box, as Ultralytics' ONNX Runtime example."""
    boxes, scores, classes = [], [], []
    for row in prediction.T:
        score = np.amax(row[4:])
        if score >= conf:
            x, y, w, h = row[:4]
            if factors is None:
                boxes.append([x - (0.5 * w), y - (0.5 * h), w, h])
            else:
                boxes.append([int((x - w / 2) * factors[0]), int((y - h / 2) * factors[1]), int(w * factors[0]), int(h * factors[1])])
            scores.append(score)
            classes.append(int(np.argmax(row[4:])))
    if by_class:
        indices = []
        for label in sorted(set(classes)):
            own = [index for index, other in enumerate(classes) if other == label]
            kept = cv2.dnn.NMSBoxes([boxes[i] for i in own], [scores[i] for i in own], conf, iou)
            indices += [own[k] for k in np.array(kept).ravel()]
    else:
        indices = np.array(cv2.dnn.NMSBoxes(boxes, scores, conf, iou)).ravel()
    return (np.array([boxes[i] for i in indices], F).reshape(-1, 4), np.array([scores[i] for i in indices], F),
            np.array([classes[i] for i in indices], np.int64))


def multiclass(prediction, conf, iou, size, input_size):
    """The class of ibaiGorordo's ONNX examples: boxes scaled as centres, suppressed class by class, `iou < threshold`."""
    x = prediction.T
    scores = np.max(x[:, 4:], axis=1)
    x, scores = x[scores > F(conf)], scores[scores > F(conf)]
    if not len(scores):
        return np.zeros((0, 4), F), np.zeros(0, F), np.zeros(0, np.int64)
    classes = np.argmax(x[:, 4:], axis=1)
    boxes = np.divide(x[:, :4], np.array([input_size[1], input_size[0]] * 2), dtype=F)
    boxes *= np.array([size[1], size[0]] * 2)
    boxes = xyxy(boxes)
    keep = []
    for label in np.unique(classes):
        own = np.where(classes == label)[0]
        order = np.argsort(scores[own], kind="stable")[::-1]
        keep.extend(own[nms_numpy(boxes[own], scores[own], iou, order, strict=True)])
    return boxes[keep], scores[keep], classes[keep]


def tensorrtx(x, conf, iou):
    """tensorrtx's yolov5: rows of box as corners, score, class; `+ 1`, epsilon 1e-16, boxes of the same class."""
    x = x[x[:, 4] >= F(conf)]
    x = x[np.argsort(-x[:, 4], kind="stable")]
    keep = []
    while len(x):
        first, rest = x[0], x
        x1, y1 = np.maximum(first[0], rest[:, 0]), np.maximum(first[1], rest[:, 1])
        x2, y2 = np.minimum(first[2], rest[:, 2]), np.minimum(first[3], rest[:, 3])
        shared = np.clip(x2 - x1 + 1, 0, None) * np.clip(y2 - y1 + 1, 0, None)
        area = (first[2] - first[0] + 1) * (first[3] - first[1] + 1)
        areas = (rest[:, 2] - rest[:, 0] + 1) * (rest[:, 3] - rest[:, 1] + 1)
        overlap = shared / (area + areas - shared + 1e-16)
        assert overlap.dtype == F
        dropped = (overlap > iou) & (first[5] == rest[:, 5])
        dropped[0] = True
        keep.append(first)
        x = x[~dropped]
    return np.array(keep, F).reshape(-1, 6)


# Predictions: clusters of boxes around objects, and noise.

def predict(boxes, classes, width, height):
    objects = rng.integers(1, 8)
    centre = rng.random((objects, 4)) * [width, height, width / 2, height / 2]
    label = rng.integers(0, classes, objects)
    which = rng.integers(0, objects, boxes)
    box = centre[which] + rng.standard_normal((boxes, 4)) * rng.choice([1.0, 8.0, 30.0])
    box[:, 2:] = np.abs(box[:, 2:])
    scores = rng.random((boxes, classes)) * 0.3
    scores[np.arange(boxes), label[which]] = rng.random(boxes)
    if rng.random() < 0.3:
        # Equal scores and boxes; whole numbers, of which some overlaps equal the bound.
        scores, box = np.round(scores, 1), np.round(box / 10) * 10
    if rng.random() < 0.1:
        scores *= 0
    if rng.random() < 0.1:
        box[: boxes // 3, 2:] = 0
    return box.astype(F), scores.astype(F)


def batch(rows):
    """Rows of different counts, filled up as the step does."""
    width = max(len(scores) for _, scores, _ in rows)
    boxes, scores = np.zeros((len(rows), width, 4), F), np.zeros((len(rows), width), F)
    classes = np.full((len(rows), width), -1, np.int64)
    for row, (box, score, label) in enumerate(rows):
        boxes[row, :len(score)], scores[row, :len(score)], classes[row, :len(score)] = box, score, label
    return {"boxes": boxes, "scores": scores, "classes": classes, "counts": np.array([len(score) for _, score, _ in rows])}


def split(x):
    return x[:, :4], x[:, 4], x[:, 5].astype(np.int64)


LABELS = [f"class {index}" for index in range(80)]
for _ in range(count):
    rows, number, classes = int(rng.integers(1, 4)), int(rng.choice([1, 17, 100, 300])), int(rng.choice([1, 2, 5, 80]))
    height, width = int(rng.choice([320, 640])), 640
    images = [predict(number, classes, width, height) for _ in range(rows)]
    v8 = np.stack([np.concatenate([box, scores], 1).T for box, scores in images])
    conf, iou = float(rng.choice([0.1, 0.25, 0.5, 0.6])), float(rng.choice([0.3, 0.45, 0.5, 0.6, 0.7]))
    size = rng.integers(100, 2000, (rows, 2))
    both = {"score_threshold": conf, "iou_threshold": iou}
    base = {"step": "detect", "layout": "yolov8", **both}

    # Ultralytics, with all its options, and the boxes back in the image.
    options = dict(agnostic=bool(rng.random() < 0.3), multi_label=bool(rng.random() < 0.3), max_det=int(rng.choice([3, 300])),
                   max_nms=int(rng.choice([20, 30000])), classes=[0, 3] if rng.random() < 0.2 else [])
    got = [ultralytics(x, conf, iou, **options) for x in v8]
    step = {**base, "nms": "agnostic" if options["agnostic"] else "offset", "multi_label": options["multi_label"],
            "max_detections": options["max_det"], "max_candidates": options["max_nms"], "class_filter": options["classes"]}
    cases.add(step, {"predictions": v8}, batch([split(x) for x in got]))
    rows_first = np.ascontiguousarray(v8.transpose(0, 2, 1))
    cases.add({**step, "layout": "yolov8_rows"}, {"predictions": rows_first}, batch([split(x) for x in got]))
    for rounded in True, False:
        placed = [(scale_boxes((height, width), x[:, :4], own, rounded=rounded), x[:, 4], x[:, 5]) for x, own in zip(got, size.tolist())]
        cases.add({**step, "mapping": "letterbox", "input_size": [height, width], "clip": True,
                   "letterbox_pad": "rounded" if rounded else "exact"},
                  {"predictions": v8, "original_size": size}, batch(placed))
    # With ratio and border from the step that made the image; without clipping.
    ratio, pad = (rng.random(rows) + 0.2).astype(F), rng.integers(0, 100, (rows, 2)).astype(F)
    placed = [(scale_boxes((0, 0), x[:, :4], (1 << 24, 1 << 24), (r, p)), x[:, 4], x[:, 5]) for x, r, p in zip(got, ratio, pad)]
    cases.add({**step, "mapping": "letterbox", "clip": True},
              {"predictions": v8, "ratio": ratio, "pad": pad, "original_size": np.full((rows, 2), 1 << 24)}, batch(placed))
    one = got[0]
    boxes, scores, labels = split(one)
    columns = {"box,score,class": one, "class,score,box": one[:, [5, 4, 0, 1, 2, 3]], "score,class,box": one[:, [4, 5, 0, 1, 2, 3]],
               "box,class,score": one[:, [0, 1, 2, 3, 5, 4]]}
    for name, want in columns.items():
        cases.add({**step, "columns": name, "labels": LABELS}, {"predictions": v8[0]},
                  {"detections": want, "labels": texts([LABELS[label] for label in labels]).reshape(-1)})
    corner = np.stack([boxes[:, 0], boxes[:, 1], boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]], 1)
    centre = np.stack([(boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2, corner[:, 2], corner[:, 3]], 1)
    cases.add({**step, "output_format": "xywh"}, {"predictions": v8[0]}, {"boxes": corner})
    cases.add({**step, "output_format": "cxcywh"}, {"predictions": v8[0]}, {"boxes": centre})
    # Numbers of masks behind the classes.
    masks = np.concatenate([v8, rng.standard_normal((rows, 7, number)).astype(F)], 1)
    cases.add({**step, "class_count": classes}, {"predictions": masks}, batch([split(x) for x in got]))

    # YOLOv5.
    objectness = [rng.random((number, 1)).astype(F) ** F(0.5) for _ in range(rows)]
    v5 = np.stack([np.concatenate([box, o, scores], 1) for (box, scores), o in zip(images, objectness)])
    for multi_label in False, True:
        got = [yolov5(x, conf, iou, multi_label=multi_label) for x in v5]
        step = {**base, "layout": "yolov5", "class_offset": 4096, "multi_label": multi_label}
        cases.add(step, {"predictions": v5}, batch([split(x) for x in got]))
    alone = [x[x[:, 4] >= F(conf)] for x in v5]
    cases.add({"step": "detect", "layout": "yolov5", "score": "objectness", "score_threshold": conf, "compare": ">=", "nms": "off"},
              {"predictions": v5}, batch([(xyxy(x[:, :4]), x[:, 4], x[:, 5:].argmax(1)) for x in alone]))
    alone = [x[x[:, 5:].max(1) > F(conf)] for x in v5]
    cases.add({"step": "detect", "layout": "yolov5", "score": "class", "score_threshold": conf, "nms": "off"}, {"predictions": v5},
              batch([(xyxy(x[:, :4]), x[:, 5:].max(1, initial=-1), x[:, 5:].argmax(1)) for x in alone]))

    # OpenCV's suppression in the loop over all boxes.
    cv = {**base, "iou": "opencv", "nms": "agnostic", "output_format": "xywh", "max_detections": 30000}
    cases.add(cv, {"predictions": v8}, batch([opencv_loop(x, conf, iou) for x in v8]))
    cases.add({**cv, "nms": "by_class", "order": "class"}, {"predictions": v8}, batch([opencv_loop(x, conf, iou, by_class=True) for x in v8]))
    factors = [(own[1] / width, own[0] / height) for own in size.tolist()]
    cases.add({**cv, "mapping": "stretch", "input_size": [height, width], "map_at": "before_nms", "round": "truncate"},
              {"predictions": v8, "original_size": size}, batch([opencv_loop(x, conf, iou, f) for x, f in zip(v8, factors)]))
    square = np.stack([size[:, 1]] * 2, 1)
    scaled = [(np.array([[round(v) for v in row] for row in box * F(s / 640)], F).reshape(-1, 4), score, label)
              for (box, score, label), s in zip([opencv_loop(x, conf, iou) for x in v8], square[:, 0].tolist())]
    cases.add({**cv, "mapping": "stretch", "input_size": [640, 640], "round": "nearest"},
              {"predictions": v8, "original_size": square}, batch(scaled))

    # Code with numpy alone.
    want = [multiclass(x, conf, iou, own, (height, width)) for x, own in zip(v8, size)]
    cases.add({**base, "iou": "numpy", "iou_compare": "<", "nms": "by_class", "order": "class", "ties": "last", "map_at": "start",
               "mapping": "stretch_divided", "input_size": [height, width], "max_detections": 30000},
              {"predictions": v8, "original_size": size}, batch(want))
    end = np.stack([np.concatenate([xyxy(box), scores.max(1)[:, None], scores.argmax(1)[:, None].astype(F)], 1) for box, scores in images])
    cases.add({**both, "step": "detect", "layout": "end_to_end", "compare": ">=", "iou": "numpy", "epsilon": 1e-16, "plus_one": True,
               "nms": "by_class"}, {"predictions": end}, batch([split(tensorrtx(x, conf, iou)) for x in end]))
    for plus, epsilon, strict in (0, None, False), (1, None, False), (0, 1e-7, False), (0, 1e-6, True):
        want = []
        for x in end:
            x = x[x[:, 4] > F(conf)]
            order = np.argsort(x[:, 4], kind="stable")[::-1]
            want.append(split(x[nms_numpy(x[:, :4], x[:, 4], iou, order, plus, epsilon, strict)]))
        cases.add({**both, "step": "detect", "layout": "end_to_end", "iou": "numpy", "epsilon": epsilon or 0, "plus_one": bool(plus),
                   "iou_compare": "<" if strict else "<=", "nms": "agnostic", "ties": "last"}, {"predictions": end}, batch(want))

    # Networks that suppress themselves.
    kept = [x[x[:, 4] > F(conf)] for x in end]
    cases.add({"step": "detect", "layout": "end_to_end", "score_threshold": conf, "max_detections": 30000}, {"predictions": end},
              batch([split(x) for x in kept]))
    counts = rng.integers(0, number + 1, (rows, 1)).astype(np.int32)
    apart = {"num_detections": counts, "boxes": end[:, :, :4], "scores": end[:, :, 4], "classes": end[:, :, 5].astype(np.int32)}
    kept = [x[:n][x[:n, 4] > F(conf)] for x, [n] in zip(end, counts)]
    cases.add({"step": "detect", "layout": "apart", "score_threshold": conf, "max_detections": 30000}, apart, batch([split(x) for x in kept]))
    unit = {**apart, "boxes": (end[:, :, [1, 0, 3, 2]] / F(640)), "original_size": size}
    kept = [(unit["boxes"][i][:, [1, 0, 3, 2]] * np.array([own[1], own[0]] * 2, F), end[i, :, 4], end[i, :, 5].astype(np.int64))
            for i, own in enumerate(size)]
    kept = [tuple(part[:n][e[:n, 4] > F(conf)] for part in parts) for parts, [n], e in zip(kept, counts, end)]
    cases.add({"step": "detect", "layout": "apart", "score_threshold": conf, "box_format": "yxyx", "mapping": "unit",
               "max_detections": 30000}, unit, batch(kept))

"""PyTorch's and torchvision's own functions, in Debian's python3-torch and python3-torchvision: transforms of pictures, softmax,
sigmoid, norms, pooling, suppressions of boxes, interpolation."""

import io
import sys

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision import ops
from torchvision import transforms as T

from cases import Cases

rng = np.random.default_rng(12)
cases = Cases(sys.argv[1], "cases")
rounds = 200
torch.set_num_threads(1)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


def pixels():
    """A picture with areas and edges, as PNG and as pixels."""
    height, width = (int(value) for value in rng.integers(16, 400, 2))
    small = Image.fromarray(rng.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), np.uint8))
    image = small.resize((width, height), Image.Resampling.NEAREST if rng.integers(0, 2) else Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return np.array([file.getvalue()], dtype=object), image


def floats(*shape):
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3)).astype(np.float32)


def numpy(tensor):
    return tensor.detach().numpy()


def transforms_of_pictures():
    file, image = pixels()
    filter = str(rng.choice(FILTERS))
    mode = getattr(T.InterpolationMode, filter.upper())
    settings = {"step": "image", "filter": filter, "mean": MEAN, "std": STD}
    # `antialias` means nothing for a picture of Pillow.
    antialias = [None, True, False][int(rng.integers(0, 3))]
    if rng.integers(0, 2):
        edge = int(rng.integers(16, 256))
        crop = [int(rng.integers(1, edge + 1)), int(rng.integers(1, edge + 1))]
        settings.update({"resize": "shortest", "size": [edge], "crop": crop, "crop_rounding": "round"})
        geometry = [T.Resize(edge, interpolation=mode, antialias=antialias), T.CenterCrop(crop)]
    else:
        size = [int(rng.integers(1, 300)), int(rng.integers(1, 300))]
        settings.update({"resize": "exact", "size": size})
        geometry = [T.Resize(size, interpolation=mode, antialias=antialias)]
    composed = T.Compose([*geometry, T.ToTensor(), T.Normalize(MEAN, STD)])
    cases.add(settings, {"image": file}, {"pixels": numpy(composed(image))[None]})


def transforms_of_tensors():
    """Those of tensors round otherwise than Pillow and OpenCV: they are not proposed; how far they are away is held. With bicubic
    weights they differ by up to 16 of 255 where Pillow cuts values off between its passes, which is not held."""
    file, image = pixels()
    size = [int(rng.integers(8, 300)), int(rng.integers(8, 300))]
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    for antialias, library, filter in ((True, "pillow", "bilinear"), (False, "opencv", "linear")):
        want = numpy(T.Resize(size, interpolation=T.InterpolationMode.BILINEAR, antialias=antialias)(tensor))
        settings = {"step": "image", "library": library, "filter": filter, "size": size, "datatype": "UINT8"}
        cases.add(settings, {"image": file}, {"pixels": (want[None], 0.0, 1.0)})


def scores():
    rows, count = int(rng.integers(1, 6)), int(rng.integers(2, 1001))
    values = floats(rows, count)
    tensor = torch.from_numpy(values)
    softmax, sigmoid = numpy(F.softmax(tensor, dim=-1)), numpy(torch.sigmoid(tensor))
    cases.add({"step": "head", "activation": "softmax"}, {"scores": values}, {"scores": (softmax, 1e-5, 1e-9)})
    cases.add({"step": "head", "activation": "sigmoid"}, {"scores": values}, {"scores": (sigmoid, 1e-6, 1e-30)})
    # Of distinct values: torch promises no order of equal ones.
    distinct = rng.permutation(count).astype(np.float32)[None] / 7
    top = torch.topk(torch.from_numpy(distinct), min(5, count))
    cases.add({"step": "head", "top_k": 5}, {"scores": distinct}, {"scores": numpy(top.values), "indices": numpy(top.indices)})
    cases.add({"step": "normalize"}, {"vector": values}, {"vector": (numpy(F.normalize(tensor, p=2, dim=1)), 1e-6, 1e-9)})


def pooled():
    rows, tokens, size = int(rng.integers(1, 5)), int(rng.integers(1, 40)), int(rng.choice([7, 32, 384]))
    states = rng.standard_normal((rows, tokens, size)).astype(np.float32)
    mask = (np.arange(tokens) < rng.integers(1, tokens + 1, rows)[:, None]).astype(np.int64)
    # As the model cards of sentence-transformers have it.
    wide = torch.from_numpy(mask).unsqueeze(-1).expand(states.shape).float()
    mean = torch.sum(torch.from_numpy(states) * wide, 1) / torch.clamp(wide.sum(1), min=1e-9)
    inputs = {"states": states, "mask": mask}
    cases.add({"step": "pool", "mode": "mean"}, inputs, {"vector": (numpy(mean), 1e-6, 1e-6)})
    normal = numpy(F.normalize(mean, p=2, dim=1))
    cases.add({"step": "pool", "mode": "mean", "normalize": True}, inputs, {"vector": (normal, 1e-6, 1e-6)})


def suppressions():
    # More than 1,000 boxes take torchvision's path class by class; fewer are moved by their class.
    count = int(rng.choice([1, 20, 300, 1200]))
    corners = rng.random((count, 2)) * 600
    # Whole numbers stay exact when they are moved by their class.
    boxes = np.concatenate([corners, corners + 5 + rng.random((count, 2)) * 150], 1).astype(np.float32)
    if count <= 1000:
        boxes = np.round(boxes)
    values = (rng.permutation(count).astype(np.float32) + 1) / (count + 1)
    classes = rng.integers(0, 5, count)
    threshold = float(rng.choice([0.3, 0.45, 0.5, 0.7]))
    shared = {"step": "detect", "layout": "apart", "score_threshold": 0.0, "iou_threshold": threshold, "max_detections": 30000}
    tensors = [torch.from_numpy(values) for values in (boxes, values, classes)]
    inputs = {"boxes": boxes[None], "scores": values[None], "classes": classes[None]}
    for nms, kept in (("agnostic", ops.nms(*tensors[:2], threshold)), ("by_class", ops.batched_nms(*tensors, threshold))):
        kept = numpy(kept)
        outputs = {"boxes": boxes[kept][None], "scores": values[kept][None], "classes": classes[kept][None],
                   "counts": np.array([len(kept)])}
        cases.add({**shared, "nms": nms}, inputs, outputs)


def class_maps():
    classes, height, width = int(rng.integers(2, 20)), int(rng.integers(4, 40)), int(rng.integers(4, 40))
    values = rng.standard_normal((1, classes, height, width)).astype(np.float32)
    size = [int(rng.integers(4, 160)), int(rng.integers(4, 160))]
    scaled = F.interpolate(torch.from_numpy(values), size=size, mode="bilinear", align_corners=False)
    best, second = numpy(torch.topk(scaled, 2, dim=1).values).transpose(1, 0, 2, 3)
    if (best - second).min() < 1e-5:
        # Rounding decides.
        return
    want = numpy(scaled.argmax(1)).astype(np.uint8)
    inputs = {"scores": values, "original_size": np.array([size])}
    cases.add({"step": "class_map", "resize": "scores"}, inputs, {"classes": want})


PARTS = {"pictures": transforms_of_pictures, "tensors": transforms_of_tensors, "scores": scores, "pool": pooled,
         "boxes": suppressions, "class_maps": class_maps}
for _ in range(rounds):
    PARTS[sys.argv[2]]()

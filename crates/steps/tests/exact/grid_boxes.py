"""Boxes of the cells of grids, as public code of PicoDet (rapid-layout), SCRFD (insightface) and YOLOX computes them."""

import sys

import numpy as np

from cases import Cases

rng = np.random.default_rng(12)
cases = Cases(sys.argv[1], "cases")
count = 400 if sys.argv[2] == "whole" else 40


def picodet(cells, strides, input_shape, reg_max):
    boxes, start = [], 0
    for stride in strides:
        fm_h = input_shape[0] / stride
        fm_w = input_shape[1] / stride
        h_range = np.arange(fm_h)
        w_range = np.arange(fm_w)
        ww, hh = np.meshgrid(w_range, h_range)
        ct_row = (hh.flatten() + 0.5) * stride
        ct_col = (ww.flatten() + 0.5) * stride
        center = np.stack((ct_col, ct_row, ct_col, ct_row), axis=1)
        box_distribute = cells[start : start + len(center)]
        start += len(center)
        reg_range = np.arange(reg_max + 1)
        box_distance = box_distribute.reshape((-1, reg_max + 1))
        powers = np.exp(box_distance - box_distance.max(axis=1, keepdims=True))
        box_distance = powers / powers.sum(axis=1, keepdims=True)
        box_distance = box_distance * np.expand_dims(reg_range, axis=0)
        box_distance = np.sum(box_distance, axis=1).reshape((-1, 4))
        box_distance = box_distance * stride
        boxes.append(center + [-1, -1, 1, 1] * box_distance)
    return np.concatenate(boxes).astype(np.float32)


def scrfd(cells, strides, input_shape):
    boxes, start = [], 0
    for stride in strides:
        height, width = -(-input_shape[0] // stride), -(-input_shape[1] // stride)
        anchor_centers = np.stack(np.mgrid[:height, :width][::-1], axis=-1).astype(np.float32)
        anchor_centers = (anchor_centers * stride).reshape((-1, 2))
        distance = cells[start : start + len(anchor_centers)] * stride
        start += len(anchor_centers)
        x1 = anchor_centers[:, 0] - distance[:, 0]
        y1 = anchor_centers[:, 1] - distance[:, 1]
        x2 = anchor_centers[:, 0] + distance[:, 2]
        y2 = anchor_centers[:, 1] + distance[:, 3]
        boxes.append(np.stack([x1, y1, x2, y2], axis=-1))
    return np.concatenate(boxes)


def yolox(outputs, strides, img_size):
    grids, expanded_strides = [], []
    hsizes = [-(-img_size[0] // stride) for stride in strides]
    wsizes = [-(-img_size[1] // stride) for stride in strides]
    for hsize, wsize, stride in zip(hsizes, wsizes, strides):
        xv, yv = np.meshgrid(np.arange(wsize), np.arange(hsize))
        grid = np.stack((xv, yv), 2).reshape(1, -1, 2)
        grids.append(grid)
        expanded_strides.append(np.full((*grid.shape[:2], 1), stride))
    grids = np.concatenate(grids, 1)
    expanded_strides = np.concatenate(expanded_strides, 1)
    outputs = outputs.copy()
    outputs[..., :2] = (outputs[..., :2] + grids) * expanded_strides
    outputs[..., 2:4] = np.exp(outputs[..., 2:4]) * expanded_strides
    return outputs


for _ in range(count):
    strides = [[8, 16, 32], [8, 16, 32, 64], [4], [16, 8]][rng.integers(4)]
    size = [int(side) for side in rng.integers(8, 200, 2)]
    cell_count = sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides)
    rest = rng.random((cell_count, int(rng.integers(0, 5))), dtype=np.float32)
    grids = {"step": "grid_boxes", "strides": strides, "input_size": size}
    # The error of FP32 in the softmax is that of the distances: some of the input's size.
    tolerance = 1e-6, 1e-5 * max(size)
    bins = int(rng.choice([8, 17]))
    cells = rng.normal(0, 3, (cell_count, 4 * bins)).astype(np.float32)
    want = np.concatenate([picodet(cells, strides, size, bins - 1), rest], axis=1)
    step = {**grids, "form": "distribution", **({} if bins == 8 else {"bins": bins})}
    cases.add(step, {"cells": np.concatenate([cells, rest], axis=1)[None]}, {"boxes": (want[None], *tolerance)})
    cells = rng.random((cell_count, 4), dtype=np.float32) * 6
    want = np.concatenate([scrfd(cells, strides, size), rest], axis=1)
    step = {**grids, "form": "distances", "centre": 0}
    cases.add(step, {"cells": np.concatenate([cells, rest], axis=1)}, {"boxes": (want, *tolerance)})
    cells = np.concatenate([rng.normal(0, 1, (2, cell_count, 4)).astype(np.float32), np.stack([rest, rest])], axis=2)
    cases.add({**grids, "form": "offsets"}, {"cells": cells}, {"boxes": (yolox(cells, strides, size), *tolerance)})

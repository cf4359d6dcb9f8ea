"""Pooling of token vectors as sentence-transformers and public `model.py` files do it, in numpy."""

import sys

import numpy as np

from cases import Cases

rng = np.random.default_rng(8)
cases = Cases(sys.argv[1], "cases")
count = 3_000 if sys.argv[2] == "whole" else 150


def pool(states, mask, mode):
    expanded = np.broadcast_to(mask[..., None], states.shape).astype(np.float32)
    if mode == "cls":
        return states[:, 0]
    if mode == "max":
        states = states.copy()
        states[expanded == 0] = -1e9
        return np.max(states, 1)
    if mode == "mean":
        return np.sum(states * expanded, 1) / np.clip(expanded.sum(1), 1e-9, None)
    if mode == "mean_sqrt_len":
        return np.sum(states * expanded, 1) / np.sqrt(np.clip(expanded.sum(1), 1e-9, None))
    if mode == "weighted_mean":
        expanded = expanded * np.arange(1, states.shape[1] + 1, dtype=np.float32)[None, :, None]
        return np.sum(states * expanded, 1) / np.clip(expanded.sum(1), 1e-9, None)
    if mode == "last":
        if mask[:, -1].sum() == mask.shape[0]:
            return states[:, -1]
        return states[np.arange(len(states)), mask.astype(np.int64).sum(1) - 1]
    raise ValueError(mode)


def exact(want):
    # numpy adds a single dimension, which is contiguous, in another order.
    return want if want.shape[-1] > 1 else (want, 1e-6, 1e-6)


for index in range(count):
    rows, tokens, size = int(rng.integers(1, 5)), int(rng.integers(1, 40)), int(rng.choice([1, 7, 32, 384]))
    states = rng.standard_normal((rows, tokens, size)).astype(rng.choice([np.float32, np.float16]))
    wide = states.astype(np.float32)
    lengths = rng.integers(0, tokens + 1, rows)
    mask = (np.arange(tokens) < lengths[:, None]).astype(rng.choice([np.int64, np.int32, np.float32]))
    left = mask[:, ::-1] if lengths.min() > 0 else mask
    for mode in "mean", "cls", "last", "max", "mean_sqrt_len", "weighted_mean":
        want = pool(wide, mask, mode)
        cases.add({"step": "pool", "mode": mode}, {"states": states, "mask": mask}, {"vector": exact(want)})
        cases.add({"step": "pool", "mode": mode}, {"states": states}, {"vector": exact(pool(wide, np.ones_like(mask), mode))})
        dimensions = int(rng.integers(1, size + 1))
        cut = want[:, :dimensions]
        norm = np.linalg.norm(cut, axis=1, keepdims=True)
        cases.add({"step": "pool", "mode": mode, "normalize": True, "dimensions": dimensions},
                  {"states": states, "mask": mask}, {"vector": (cut / np.maximum(norm, 1e-12), 1e-6, 1e-6 if size == 1 else 1e-44)})
    cases.add({"step": "pool", "mode": "last"}, {"states": states, "mask": left}, {"vector": pool(wide, left, "last")})
    if lengths.min() > 0:
        vector = pool(wide, mask, "mean")
        with np.errstate(invalid="ignore", divide="ignore"):
            want = vector / np.linalg.norm(vector, axis=1, keepdims=True)
        cases.add({"step": "pool", "normalize": True, "epsilon": 0}, {"states": states, "mask": mask},
                  {"vector": (want, 1e-6, 1e-6 if size == 1 else 1e-44)})

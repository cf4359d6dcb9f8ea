"""Run times of the libraries for forests of 100 trees of depth 6 and 32 features, on one thread, beside `cargo bench --bench trees`.

    speed.py DIRECTORY     writes forest.json, forest.txt and forest.tl there, and prints a table

Treelite's figures are those of its C function, called with memory that is there already; the others are those of
`inplace_predict` and `predict`, Python's part included.
"""

import ctypes
import pathlib
import sys
import time

import lightgbm
import numpy as np
import treelite
import xgboost
from treelite.core import _LIB, _check_call


def best(call, count):
    """The best mean of ten, in microseconds."""
    means = []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        means.append((time.perf_counter() - begin) / count)
    return min(means) * 1e6


def gtil(model, rows):
    """Calls GTIL without what Python does around it."""
    config = treelite.gtil.gtil.GTILConfig(nthread=1, predict_type="default")
    rows = np.ascontiguousarray(rows, np.float32 if model.input_type == "float32" else np.float64)
    out = np.zeros(len(rows), rows.dtype)
    pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)
    arguments = (model.handle, pointer(rows), ctypes.c_char_p(str(rows.dtype).encode()), ctypes.c_size_t(len(rows)),
                 pointer(out), config.handle)
    _check_call(_LIB.TreeliteGTILPredict(*arguments))
    assert np.array_equal(out, treelite.gtil.predict(model, rows, nthread=1).ravel())

    def call(_kept=(config, rows, out)):
        assert _LIB.TreeliteGTILPredict(*arguments) == 0

    return call


def main(directory):
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    x = random.normal(size=(5000, 32)).astype(np.float32)
    y = x[:, :8].sum(axis=1) + x[:, 8] * x[:, 9] + random.normal(size=5000) > 0
    parameters = {"objective": "binary:logistic", "max_depth": 6, "min_child_weight": 0, "nthread": 1}
    boosted = xgboost.train(parameters, xgboost.DMatrix(x, label=y), 100)
    parameters = {"objective": "binary", "max_depth": 6, "num_leaves": 63, "min_data_in_leaf": 1, "num_threads": 1,
                  "verbose": -1}
    light = lightgbm.train(parameters, lightgbm.Dataset(x, label=y), 100)
    boosted.save_model(directory / "forest.json")
    light.save_model(directory / "forest.txt")
    boosted.set_param({"nthread": 1})
    frontend = treelite.frontend
    read = [frontend.load_xgboost_model(directory / "forest.json"), frontend.load_lightgbm_model(directory / "forest.txt")]
    read[0].serialize(directory / "forest.tl")
    print("| rows | GTIL, XGBoost's trees | GTIL, LightGBM's | XGBoost | LightGBM |\n|---|---|---|---|---|")
    for rows in 1, 64:
        data = random.normal(size=(rows, 32)).astype(np.float32)
        wide = data.astype(np.float64)
        calls = [gtil(read[0], data), gtil(read[1], wide), lambda: boosted.inplace_predict(data),
                 lambda: light.predict(wide, num_threads=1)]
        print(f"| {rows} |", " | ".join(f"{best(call, 2000 // rows + 20):.1f} µs" for call in calls), "|")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

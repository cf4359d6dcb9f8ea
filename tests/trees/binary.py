"""Models in XGBoost's old binary format with the answers of the XGBoost that wrote them, for `trees.rs`.

    binary.py DIRECTORY SEED COUNT     random models: name.model, name.rows, name.want (FP32)
    binary.py --few DIRECTORY          those that the repository keeps in tests/trees/models: XGBoost 1.7 writes
                                       xgboost-binary.model, 0.90 (on numpy 1) xgboost-unmarked.model, before there was a mark

Since XGBoost 3.1 the format is gone.
"""

import pathlib
import sys

import numpy as np
import xgboost

OBJECTIVES = [
    "reg:squarederror", "reg:logistic", "reg:gamma", "reg:tweedie", "count:poisson", "binary:logistic", "binary:logitraw",
    "binary:hinge", "rank:pairwise", "survival:cox", "multi:softprob",
]


def write(file, random, objective, booster, rounds=4, depth=3, asked=20, **more):
    features, classes = int(random.integers(1, 12)), int(random.integers(2, 6))
    x = random.normal(size=(400, features)).astype(np.float32)
    x = np.where(random.random(x.shape) < 0.3, np.round(x), x)
    score = x.sum(axis=1) + random.normal(size=len(x)) * 0.3
    x = np.where(random.random(x.shape) < 0.1, np.nan, x).astype(np.float32)
    labels = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
    parameters = {"objective": objective, "booster": booster, "max_depth": depth, "nthread": 1, "verbosity": 0,
                  "eta": float(random.choice([0.1, 0.3, 1.0])), "gamma": float(random.choice([0, 0.5])),
                  "base_score": float(random.choice([0.5, 0.7])), "seed": int(random.integers(1 << 30))}
    if booster == "dart":
        parameters["rate_drop"] = 0.4
    if objective == "multi:softprob":
        parameters["num_class"] = classes
    elif objective.startswith("binary"):
        labels = labels > (classes - 1) / 2
    elif not objective.startswith("rank"):
        labels = (labels + 0.5) / (classes + 0.5)
    train = xgboost.DMatrix(x, label=labels)
    if objective.startswith("rank"):
        train.set_group([50] * 8)
    model = xgboost.train({**parameters, **more}, train, rounds)
    model.save_model(str(file))
    rows = x[random.integers(0, len(x), asked)].copy()
    noise = random.random(rows.shape)
    rows[noise < 0.05] = np.nan
    rows[(noise > 0.05) & (noise < 0.1)] = 0
    return rows, np.asarray(model.predict(xgboost.DMatrix(rows)), np.float32).reshape(asked, -1)


def main(directory, seed, count):
    directory.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        random = np.random.default_rng([seed, index])
        objective, booster = OBJECTIVES[index % len(OBJECTIVES)], ["gbtree", "gbtree", "dart"][index % 3]
        file = directory / f"xgboost-{index}.model"
        rows, want = write(file, random, objective, booster, int(random.integers(1, 25)), int(random.integers(1, 9)), 97)
        rows.astype("<f4").tofile(file.with_suffix(".rows"))
        want.astype("<f4").tofile(file.with_suffix(".want"))


def few(directory):
    random = np.random.default_rng(7)
    if xgboost.__version__.startswith("0."):
        # It adds the base score to the sum of the trees, later ones the trees to the base score: here that is 0.
        file = directory / "xgboost-unmarked.model"
        rows, want = write(file, random, "binary:logistic", "gbtree", base_score=0.5)
    else:
        file = directory / "xgboost-binary.model"
        rows, want = write(file, random, "multi:softprob", "gbtree")
    text = lambda values: ",".join("nan" if np.isnan(value) else repr(float(value)) for value in values)
    file.with_suffix(".csv").write_text("".join(f"{text(row)}={text(answer)}\n" for row, answer in zip(rows, want)))


if __name__ == "__main__" and sys.argv[1] == "--few":
    few(pathlib.Path(sys.argv[2]))
elif __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

"""Tree models of XGBoost, LightGBM, scikit-learn and Treelite with the answers of those libraries.

    forests.py DIRECTORY SEED COUNT    random models: name.json|ubj|txt|tl, name.rows, name.want (FP32), for `trees.rs`
    forests.py --few DIRECTORY         the few small ones that the repository keeps in tests/trees/models: name.csv has
                                       the rows, and behind `=` their answers

Answers are those of the library that made the model, in FP32; of a checkpoint, those of GTIL on FP32 rows.
"""

import json
import pathlib
import sys

import lightgbm
import numpy as np
import treelite
import xgboost
from sklearn import ensemble

XGBOOST_REGRESSION = [
    "reg:squarederror", "reg:squaredlogerror", "reg:logistic", "reg:pseudohubererror", "reg:absoluteerror", "reg:gamma",
    "reg:tweedie", "count:poisson", "binary:logistic", "binary:logitraw", "binary:hinge", "rank:pairwise", "rank:ndcg",
    "survival:cox", "survival:aft", "reg:quantileerror",
]
LIGHTGBM_REGRESSION = [
    "regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie", "binary",
    "cross_entropy", "cross_entropy_lambda", "lambdarank",
]


class Case:
    """Random training rows, and rows to ask about: with holes, zeros, values on thresholds, infinities, odd categories."""

    def __init__(self, random, rows=400, kind=None, objective=None):
        self.random = random
        self.is_few = kind is not None
        self.kind, self.objective = kind, objective
        self.features = int(random.integers(1, 12))
        self.categorical = sorted(random.choice(self.features, int(random.integers(0, 3)), replace=True).tolist())
        self.categorical = sorted(set(self.categorical))
        x = random.normal(size=(rows, self.features)).astype(np.float32)
        x = np.where(random.random(x.shape) < 0.3, np.round(x), x)
        self.sizes = [int(random.integers(2, 70)) for _ in self.categorical]
        for column, size in zip(self.categorical, self.sizes):
            x[:, column] = random.integers(0, size, rows)
        self.x = np.where(random.random(x.shape) < random.choice([0, 0.1]), np.nan, x).astype(np.float32)
        self.classes = int(random.integers(2, 6))
        self.score = np.nan_to_num(self.x).sum(axis=1) + random.normal(size=rows) * 0.3
        self.labels = np.digitize(self.score, np.quantile(self.score, np.linspace(0, 1, self.classes + 1)[1:-1]))

    def rounds(self, most):
        """Number of trees: few in a file that is kept."""
        return 4 if self.is_few else int(self.random.integers(1, most))

    def depth(self, most):
        return 3 if self.is_few else int(self.random.integers(1, most))

    def asked(self, count=97):
        count = 20 if self.is_few else count
        rows = self.x[self.random.integers(0, len(self.x), count)].copy()
        noise = self.random.random(rows.shape)
        rows[noise < 0.05] = np.nan
        rows[(noise > 0.05) & (noise < 0.1)] = 0
        odd = np.array([np.inf, -np.inf, 1e-36, -1e-36, 1e30, -0.5, -1, 16777216, 16777220, 3e9, 5e9, 0.5, 1.5], np.float32)
        is_odd = (noise > 0.1) & (noise < 0.13)
        rows[is_odd] = self.random.choice(odd, int(is_odd.sum()))
        return rows


def asked_of_xgboost(rows):
    """XGBoost refuses infinities in a DMatrix."""
    return np.where(np.isinf(rows), np.float32(7), rows)


def xgboost_case(case, name, directory):
    random = case.random
    kinds = ["regression", "multiclass", "dart", "forest", "vector"]
    kind = case.kind or random.choice(kinds, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    parameters = {"max_depth": case.depth(9), "eta": float(random.choice([0.1, 0.3, 1.0])),
                  "tree_method": "hist", "nthread": 1, "seed": int(random.integers(1 << 30)), "verbosity": 0}
    if random.random() < 0.3 and not case.is_few:
        parameters |= {"grow_policy": "lossguide", "max_leaves": 20, "max_depth": 0}
    labels = case.labels / case.classes
    objective = case.objective or str(random.choice(XGBOOST_REGRESSION))
    if kind == "multiclass" or (kind in ("dart", "forest") and not case.objective and random.random() < 0.4):
        objective, labels = "multi:softprob", case.labels
        parameters["num_class"] = case.classes
    if kind == "dart":
        parameters |= {"booster": "dart", "rate_drop": 0.4}
    if kind == "forest":
        parameters |= {"num_parallel_tree": 5, "subsample": 0.7}
    if kind == "vector":
        objective = "reg:squarederror"
        parameters["multi_strategy"] = "multi_output_tree" if not case.categorical else "one_output_per_tree"
        labels = np.stack([labels, 1 - labels, labels * 2 + case.score / 9], axis=1)
    if objective.startswith(("reg:gamma", "reg:tweedie", "survival")):
        labels = labels + 0.5
    if objective in ("binary:logistic", "binary:logitraw", "binary:hinge"):
        labels = case.labels > case.classes / 2
    if objective == "reg:quantileerror":
        parameters["quantile_alpha"] = [0.2, 0.5, 0.7][: int(random.integers(1, 4))]
    if objective.startswith("rank"):
        labels = case.labels
    if random.random() < 0.3 and not objective.startswith(("reg:quantile", "survival:aft")) and kind != "vector":
        parameters["base_score"] = 0.7
    types = ["c" if column in case.categorical else "q" for column in range(case.features)]
    if kind == "dart" or random.random() < 0.2:
        types = ["q"] * case.features
    if random.random() < 0.5:
        parameters["max_cat_to_onehot"] = 3
    matrix = lambda rows, **more: xgboost.DMatrix(rows, feature_types=types, enable_categorical=True, **more)
    train = matrix(case.x, label=labels)
    if objective.startswith("rank"):
        train.set_group([len(case.x) // 8] * 8)
    if objective == "survival:aft":
        train.set_float_info("label_lower_bound", labels)
        train.set_float_info("label_upper_bound", labels + 1)
    booster = xgboost.train(parameters | {"objective": objective}, train, case.rounds(25))
    rows = asked_of_xgboost(case.asked())
    if types.count("c"):
        for column, size in zip(case.categorical, case.sizes):
            if types[column] == "c":
                # Values that are no categories are refused by it.
                good = np.isnan(rows[:, column]) | ((rows[:, column] >= 0) & (rows[:, column] < size))
                rows[~good, column] = 0
    booster.set_param({"nthread": 1})
    booster.save_model(directory / f"{name}.json")
    booster.save_model(directory / f"{name}.ubj")
    keep(case, directory, name, rows, booster.predict(matrix(rows)))
    return kind + " " + objective


def lightgbm_case(case, name, directory):
    random = case.random
    kinds = ["regression", "multiclass", "multiclassova", "forest", "dart", "custom"]
    kind = case.kind or random.choice(kinds, p=[0.5, 0.15, 0.1, 0.1, 0.1, 0.05])
    parameters = {"num_leaves": 8 if case.is_few else int(random.integers(2, 64)), "learning_rate": float(random.choice([0.1, 0.5])),
                  "verbose": -1, "num_threads": 1, "min_data_in_leaf": 3, "min_data_per_group": 2, "cat_smooth": 1,
                  "zero_as_missing": bool(random.random() < 0.3), "use_missing": bool(random.random() < 0.8),
                  "max_cat_to_onehot": int(random.choice([1, 4])), "seed": int(random.integers(1 << 30))}
    objective = case.objective or str(random.choice(LIGHTGBM_REGRESSION))
    labels = case.labels / case.classes
    if kind in ("multiclass", "multiclassova"):
        objective, labels = str(kind), case.labels
        parameters |= {"num_class": case.classes, "sigmoid": float(random.choice([1.0, 0.7]))}
    if kind == "forest":
        parameters |= {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
    if kind == "dart":
        parameters |= {"boosting": "dart"}
    if objective in ("gamma", "tweedie", "poisson"):
        labels = labels + 0.5
    if objective == "binary":
        labels = case.labels > case.classes / 2
        parameters["sigmoid"] = float(random.choice([1.0, 0.7]))
    if objective == "regression" and random.random() < 0.5:
        parameters["reg_sqrt"] = True
    if kind == "custom":
        objective = lambda scores, data: (scores - data.get_label(), np.ones_like(scores))
    data = lightgbm.Dataset(case.x, label=case.labels if objective == "lambdarank" else labels,
                            categorical_feature=case.categorical, free_raw_data=False)
    if objective == "lambdarank":
        data.set_group([len(case.x) // 8] * 8)
    booster = lightgbm.train(parameters | {"objective": objective}, data, case.rounds(25))
    booster.save_model(directory / f"{name}.txt")
    rows = case.asked()
    keep(case, directory, name, rows, booster.predict(rows.astype(np.float64), num_threads=1))
    return f"{kind} {objective if isinstance(objective, str) else 'own'}"


def treelite_case(case, name, directory):
    random = case.random
    x, depth = np.nan_to_num(case.x), case.depth(10)
    kind = case.kind or str(random.choice(["rf", "rf classifier", "gb", "gb classifier", "extra", "extra classifier", "isolation",
                              "xgboost", "lightgbm", "hist", "hist classifier", "multi"]))
    size, seed = case.rounds(20), int(random.integers(1 << 30))
    if kind in ("xgboost", "lightgbm"):
        kept, case.kind = case.kind, case.kind and "regression"
        (xgboost_case if kind == "xgboost" else lightgbm_case)(case, f"{name}-as", directory)
        for file in [directory / f"{name}-as.{end}" for end in ("rows", "want", "ubj", "csv")]:
            file.unlink(missing_ok=True)
        case.kind = kept
        file = directory / (f"{name}-as.json" if kind == "xgboost" else f"{name}-as.txt")
        try:
            if kind == "xgboost":
                model = treelite.frontend.load_xgboost_model(file, format_choice="json", allow_unknown_field=True)
            else:
                model = treelite.frontend.load_lightgbm_model(file)
        except treelite.core.TreeliteError as error:
            return f"{kind}: Treelite does not read it: {str(error).splitlines()[-1][-60:]}"
        finally:
            file.unlink()
    else:
        both = {"random_state": seed}
        y = case.labels if "classifier" in kind else case.score
        fit = {
            "rf": ensemble.RandomForestRegressor(size, max_depth=depth, **both),
            "rf classifier": ensemble.RandomForestClassifier(size, max_depth=depth, **both),
            "extra": ensemble.ExtraTreesRegressor(size, max_depth=depth, **both),
            "extra classifier": ensemble.ExtraTreesClassifier(size, max_depth=depth, **both),
            "gb": ensemble.GradientBoostingRegressor(n_estimators=size, max_depth=depth, **both),
            "gb classifier": ensemble.GradientBoostingClassifier(n_estimators=size, max_depth=depth, **both),
            "hist": ensemble.HistGradientBoostingRegressor(max_iter=size, **both),
            "hist classifier": ensemble.HistGradientBoostingClassifier(max_iter=size, **both),
            "isolation": ensemble.IsolationForest(n_estimators=size, **both),
            "multi": ensemble.RandomForestRegressor(size, max_depth=depth, **both),
        }[kind]
        if kind == "multi":
            y = np.stack([case.score, -case.score * 2], axis=1)
        model = treelite.sklearn.import_model(fit.fit(x, y) if kind != "isolation" else fit.fit(x))
    model.serialize(directory / f"{name}.tl")
    rows = case.asked()
    keep(case, directory, name, rows, treelite.gtil.predict(model, rows, nthread=1))
    return kind


def keep(case, directory, name, rows, want):
    if case.is_few:
        text = lambda values: ",".join("nan" if np.isnan(value) else repr(float(value)) for value in values)
        want = np.asarray(want, np.float32).reshape(len(rows), -1)
        lines = [f"{text(row)}={text(answer)}\n" for row, answer in zip(rows, want)]
        (directory / f"{name}.csv").write_text("".join(lines))
        return
    rows.astype("<f4").tofile(directory / f"{name}.rows")
    np.asarray(want).astype("<f4").tofile(directory / f"{name}.want")


def main(directory, seed, count):
    directory.mkdir(parents=True, exist_ok=True)
    made = {}
    for index in range(count):
        for kind, make in ("xgboost", xgboost_case), ("lightgbm", lightgbm_case), ("treelite", treelite_case):
            case = Case(np.random.default_rng([seed, index, len(kind)]))
            made[f"{kind}-{index}"] = make(case, f"{kind}-{index}", directory)
    (directory / "made.json").write_text(json.dumps(made, indent=1))


FEW = [
    (xgboost_case, "xgboost-logistic", "regression", "binary:logistic"),
    (xgboost_case, "xgboost-tweedie", "regression", "reg:tweedie"),
    (xgboost_case, "xgboost-classes", "multiclass", None),
    (xgboost_case, "xgboost-dart", "dart", "survival:aft"),
    (xgboost_case, "xgboost-targets", "vector", None),
    (lightgbm_case, "lightgbm-binary", "regression", "binary"),
    (lightgbm_case, "lightgbm-sqrt", "dart", "regression"),
    (lightgbm_case, "lightgbm-classes", "multiclass", None),
    (lightgbm_case, "lightgbm-each", "multiclassova", None),
    (lightgbm_case, "lightgbm-forest", "forest", "poisson"),
    (treelite_case, "sklearn-forest", "rf classifier", None),
    (treelite_case, "sklearn-boosted", "gb classifier", None),
    (treelite_case, "sklearn-isolation", "isolation", None),
    (treelite_case, "treelite-xgboost", "xgboost", None),
]


def few(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for index, (make, name, kind, objective) in enumerate(FEW):
        case = Case(np.random.default_rng([7, index]), kind=kind, objective=objective)
        make(case, name, directory)
    for file in directory.iterdir():
        # One in binary is enough.
        if file.suffix == ".ubj" and file.stem not in ("xgboost-classes", "xgboost-targets"):
            file.unlink()
        if file.suffix == ".txt":
            # The text behind the trees is for people.
            file.write_text(file.read_text().split("\nfeature_importances")[0] + "\n")


if __name__ == "__main__" and sys.argv[1] == "--few":
    few(pathlib.Path(sys.argv[2]))
elif __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

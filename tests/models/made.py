"""Models that are trained here, in a second, and converted as users do: scikit-learn by skl2onnx, LightGBM and XGBoost by
onnxmltools. Seeds are fixed."""

import warnings

import numpy

warnings.filterwarnings("ignore")


def models():
    """Yields `(name, source, file)`."""
    yield from of_scikit_learn()
    yield from of_lightgbm()
    yield from of_xgboost()


def iris():
    from sklearn.datasets import load_iris

    data, target = load_iris(return_X_y=True)
    return data.astype(numpy.float32), target


def of_scikit_learn():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.ensemble import (
        ExtraTreesClassifier, GradientBoostingClassifier, GradientBoostingRegressor, RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler
    from sklearn.svm import SVC, SVR
    from sklearn.tree import DecisionTreeClassifier

    data, target = iris()
    words = numpy.array(["setosa", "versicolor", "virginica"])[target]

    def made(name, model, target=target, **options):
        model.fit(data, target)
        convert = {id(model): options} if options else None
        return f"sklearn_{name}", "skl2onnx", to_onnx(model, data[:1], options=convert).SerializeToString()

    forest = {"n_estimators": 10, "random_state": 0}
    yield made("logistic", LogisticRegression(max_iter=500))
    yield made("logistic_words", LogisticRegression(max_iter=500), words)
    yield made("logistic_binary", LogisticRegression(max_iter=500), target > 0)
    yield made("logistic_without_zipmap", LogisticRegression(max_iter=500), zipmap=False)
    yield made("logistic_columns", LogisticRegression(max_iter=500), zipmap="columns")
    yield made("random_forest", RandomForestClassifier(**forest))
    yield made("random_forest_without_zipmap", RandomForestClassifier(**forest), zipmap=False)
    yield made("extra_trees_words", ExtraTreesClassifier(**forest), words)
    yield made("gradient_boosting", GradientBoostingClassifier(**forest))
    yield made("decision_tree", DecisionTreeClassifier(random_state=0))
    yield made("svc", SVC(probability=True, random_state=0))
    yield made("svc_without_probabilities", SVC())
    yield made("sgd", SGDClassifier(loss="log_loss", random_state=0))
    yield made("naive_bayes", GaussianNB())
    yield made("neighbors", KNeighborsClassifier())
    yield made("perceptron", MLPClassifier(hidden_layer_sizes=(8,), max_iter=300, random_state=0))
    yield made("pipeline", make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)))
    yield made("kmeans", KMeans(3, n_init=3, random_state=0))
    yield made("pca", PCA(2))
    yield made("min_max", MinMaxScaler())
    yield made("linear", LinearRegression())
    yield made("random_forest_regressor", RandomForestRegressor(**forest))
    yield made("gradient_boosting_regressor", GradientBoostingRegressor(**forest))
    yield made("svr", SVR())
    yield made("perceptron_regressor", MLPRegressor(hidden_layer_sizes=(8,), max_iter=300, random_state=0))
    texts = numpy.array([["the quick brown fox"], ["a lazy dog"], ["jumps over"], ["another dog and a fox"]])
    model = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts[:, 0], [0, 1, 0, 1])
    # The locale of the converter's default is not on every machine.
    text = to_onnx(model, initial_types=[("text", StringTensorType([None, 1]))], options={CountVectorizer: {"locale": "C"}})
    yield "sklearn_text", "skl2onnx", text.SerializeToString()


def of_lightgbm():
    import lightgbm
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    data, target = iris()

    def made(name, model, target, **options):
        model.set_params(n_estimators=10, random_state=0, verbose=-1).fit(data, target)
        types = [("x", FloatTensorType([None, data.shape[1]]))]
        file = onnxmltools.convert_lightgbm(model, initial_types=types, **options)
        return f"lightgbm_{name}", "onnxmltools", file.SerializeToString()

    yield made("classifier", lightgbm.LGBMClassifier(), target)
    yield made("classifier_without_zipmap", lightgbm.LGBMClassifier(), target, zipmap=False)
    yield made("binary", lightgbm.LGBMClassifier(), (target > 0).astype(int))
    yield made("binary_without_zipmap", lightgbm.LGBMClassifier(), (target > 0).astype(int), zipmap=False)
    yield made("regressor", lightgbm.LGBMRegressor(), target)


def of_xgboost():
    import onnxmltools
    import xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    data, target = iris()

    def made(name, model, target):
        model.set_params(n_estimators=10, random_state=0).fit(data, target)
        types = [("x", FloatTensorType([None, data.shape[1]]))]
        file = onnxmltools.convert_xgboost(model, initial_types=types)
        return f"xgboost_{name}", "onnxmltools", file.SerializeToString()

    yield made("classifier", xgboost.XGBClassifier(), target)
    yield made("binary", xgboost.XGBClassifier(), (target > 0).astype(int))
    yield made("regressor", xgboost.XGBRegressor(), target)

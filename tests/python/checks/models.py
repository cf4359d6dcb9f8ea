"""Real models on real input: the digits example, and others if the server has them."""

import pathlib

import numpy as np

from .registry import KINDS, check, decode, equal

DIGITS = pathlib.Path(__file__).resolve().parents[3] / "examples" / "models" / "digits"
LABELS = (DIGITS / "labels.txt").read_text().split()
SCAN = np.fromfile(DIGITS / "raw.bin", dtype="<f4").reshape(1, 64)
RECORDS = np.fromfile(DIGITS / "held_out.bin", dtype=np.uint8).reshape(-1, 65)
ACCURACY_MIN = 0.97
# Index of "python" among the labels of the model standard_v3_3.
MAGIKA_PYTHON = 143


def best_label(texts):
    (row,) = texts.tolist()
    return [text if isinstance(text, str) else text.decode() for text in row][0].split(":")[-1]


@check({"request.json": None, "request.bin": 256})
def digits_request_file(server, tail_size):
    body = (DIGITS / ("request.bin" if tail_size else "request.json")).read_bytes()
    header_size = len(body) - tail_size if tail_size else None
    answer, _ = decode(server.infer("digits", body, header_size=header_size))
    (output,) = answer["outputs"]
    equal((output["name"], output["datatype"], output["shape"]), ("probabilities", "BYTES", [1, 3]))
    equal(output["data"][0].split(":")[1:], [str(LABELS.index("seven")), "seven"])


@check()
def digits_raw_request_file(server):
    answer, tail = decode(server.raw("digits", (DIGITS / "raw.bin").read_bytes()))
    equal(answer["outputs"][0]["shape"], [1, 10])
    equal(LABELS[np.frombuffer(tail, dtype="<f4").argmax()], "seven")


@check(KINDS.keys())
def digits_best_label(server, kind):
    with server.client(kind) as client:
        output = client.output("probabilities", class_count=3)
        result = client.infer("digits", [client.tensor("pixels", "FP32", SCAN)], outputs=[output])
        texts = result.as_numpy("probabilities")
        equal(texts.shape, (1, 3))
        equal(best_label(texts), "seven")


@check(KINDS.keys())
def digits_held_out(server, kind):
    scans, labels = RECORDS[:, :64].astype(np.float32), RECORDS[:, 64]
    with server.client(kind) as client:
        found = []
        for begin in range(0, len(scans), 64):
            sent = [client.tensor("pixels", "FP32", scans[begin : begin + 64])]
            probabilities = client.infer("digits", sent).as_numpy("probabilities")
            assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5), "rows sum to 1"
            found.append(probabilities.argmax(axis=1))
    accuracy = (np.concatenate(found) == labels).mean()
    assert accuracy >= ACCURACY_MIN, f"{accuracy:.2%} right, less than {ACCURACY_MIN:.0%}"


def magika_bytes(content):
    """The first and last 1024 bytes without white space around them; 256 stands for none."""
    begin = [*content[:4096].lstrip()[:1024]]
    end = [*content[-4096:].rstrip()[-1024:]]
    row = begin + [256] * (1024 - len(begin)) + [256] * (1024 - len(end)) + end
    return np.array([row], dtype=np.int32)


@check(KINDS.keys())
def magika(server, kind):
    server.needs("magika")
    with server.client(kind) as client:
        sent = [client.tensor("bytes", "INT32", magika_bytes((DIGITS / "train.py").read_bytes()))]
        (found,) = client.infer("magika", sent).as_numpy("target_label")
        assert abs(found.sum() - 1) < 1e-4, f"probabilities sum to {found.sum()}"
        equal((int(found.argmax()), bool(found.max() > 0.9)), (MAGIKA_PYTHON, True))


@check(KINDS.keys())
def resnet50(server, kind):
    server.needs("resnet50")
    with server.client(kind) as client:
        described = client.document("get_model_metadata", "resnet50")
        (source,), (result,) = described["inputs"], described["outputs"]
        shape = [max(1, int(size)) for size in source["shape"]]
        image = np.random.default_rng(1).random(shape, dtype=np.float32)
        sent = [client.tensor(source["name"], "FP32", image)]
        scores = client.infer("resnet50", sent).as_numpy(result["name"])
        equal(scores.shape, (1, 1000))
        assert abs(scores.sum() - 1) < 1e-3, f"probabilities sum to {scores.sum()}"

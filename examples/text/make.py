"""Trains the tokenizer and the encoder of this example, and writes both and the labels.

The tokenizer is WordPiece with BERT's parts. The network is that of fastText: the mean of the vectors of all tokens, then one
linear layer. They learn from the sentences of `sentences.txt`, which were written for this example; those with a star are held
out. Two runs write the same bytes: the seeds are fixed and the linear algebra has one thread.

    python -m venv /tmp/text && . /tmp/text/bin/activate
    pip install numpy==2.4.6 onnx==1.23.2 tokenizers==0.23.3
    python examples/text/make.py
"""

import os
import pathlib
import random
import sys

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is loaded; threads would change the order of sums

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZER = HERE / "language_tokenizer" / "1"
sys.path.insert(0, str(TOKENIZER))
sys.dont_write_bytecode = True

from wordpiece import WordPiece  # noqa: E402

# Single characters that are tokens, letters also inside a word.
LETTERS = "abcdefghijklmnopqrstuvwxyzßàáâäæçèéêëìíîïñòóôöùúûüœ"
SIGNS = "!'(),-.:;?¡«»¿"
TOKEN_COUNT = 450
LENGTH = 128
WIDTH = 8
COPIES = 20
DROPPED = 0.2
ROUNDS = 400
RATE = 0.02
DECAY = 1e-4
SEED = 20
OPSET = 13
IR_VERSION = 8  # as the digits: old engines read it too


def sentences():
    """Languages, and for each sentence its text, the index of its language and whether it is held out."""
    blocks = (HERE / "sentences.txt").read_text(encoding="utf-8").split("\n\n")
    languages, rows = [], []
    for index, block in enumerate(blocks):
        language, *lines = block.splitlines()
        languages.append(language)
        rows += [(line.lstrip("* "), index, line.startswith("*")) for line in lines]
    texts, labels, is_held_out = zip(*rows)
    return languages, texts, np.array(labels), np.array(is_held_out)


def train_tokenizer(texts):
    """A tokenizer whose pieces are the usual parts of the words in the texts."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    # Letters to small ones, and nothing else.
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=True
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # Listed, single characters always have the same numbers; else those of `##` and a letter would change with each run.
    single = ["[PAD]", "[UNK]", "[CLS]", *SIGNS, *LETTERS, *("##" + letter for letter in LETTERS)]
    trainer = trainers.WordPieceTrainer(vocab_size=TOKEN_COUNT, special_tokens=single, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    # Without tokens that a text could spell as they are: "[CLS]" in a sentence is three words.
    trained = Tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    trained.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return trained


def punctuation(tokenizer):
    """The first and the last character of each range of those that are words by themselves."""
    ranges = []
    for code in range(sys.maxunicode + 1):
        is_surrogate = 0xD800 <= code < 0xE000
        if not is_surrogate and len(tokenizer.pre_tokenizer.pre_tokenize_str(f"a{chr(code)}a")) == 3:
            if not ranges or ranges[-1][1] != code - 1:
                ranges.append([code, code])
            ranges[-1][1] = code
    return ranges


def check(tokenizer, plain, texts):
    """The plain tokenizer has the same numbers, for the texts and for each character of Unicode within a word."""
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    rows = [" ".join(f"a{chr(code)}a" for code in codes[at : at + 40]) for at in range(0, len(codes), 40)]
    for text in [*texts, *rows, "a" * 100, "a" * 101, "", "a " * 200, "[CLS] [PAD]"]:
        assert plain.encode(text, LENGTH) == tokenizer.encode(text).ids, text


def examples(plain, texts, labels):
    """Rows to learn from. The network sees each sentence whole and in parts, and its words in other pieces than the longest, so
    that it knows those of other words too. A sign alone is of any language, and so is nothing."""
    chance = random.Random(SEED)
    rows, wanted = [], []
    for text, label in zip(texts, labels):
        words = plain.words(text)
        for copy in range(COPIES):
            count = chance.randint(min(2, len(words)), len(words)) if copy % 2 else len(words)
            start = chance.randint(0, len(words) - count)
            part = " ".join(words[start : start + count])
            kept = {piece for piece in plain.vocabulary if len(piece.strip("#")) == 1 or copy == 0 or chance.random() > DROPPED}
            rows.append(plain.encode(part, LENGTH, kept))
            wanted.append(label)
    for label in sorted(set(labels)):
        for text in ["", "1", *SIGNS]:
            rows.append(plain.encode(text, LENGTH))
            wanted.append(label)
    return np.array(rows), np.array(wanted)


def counts(ids):
    """Share of each token in each sentence."""
    table = np.zeros((len(ids), TOKEN_COUNT))
    np.add.at(table, (np.arange(len(ids))[:, None], ids), 1)
    table[:, 0] = 0
    return table / table.sum(axis=1, keepdims=True)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def train(ids, labels, language_count):
    """Vectors, weights and bias, by gradient descent (Adam) on the cross entropy of all sentences at once."""
    chance = np.random.default_rng(SEED)
    tokens, wanted = counts(ids), np.eye(language_count)[labels]
    shapes = [(TOKEN_COUNT, WIDTH), (WIDTH, language_count), (language_count,)]
    values = [chance.normal(0, 0.1, shape) for shape in shapes]
    means, squares = ([np.zeros(shape) for shape in shapes] for _ in range(2))
    for step in range(1, ROUNDS + 1):
        vectors, weights, bias = values
        pooled = tokens @ vectors
        wrong = (softmax(pooled @ weights + bias) - wanted) / len(ids)
        slopes = [tokens.T @ (wrong @ weights.T), pooled.T @ wrong, wrong.sum(axis=0)]
        for value, slope, mean, square in zip(values, slopes, means, squares):
            slope = slope + DECAY * value
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope**2 - square)
            value -= RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    values[0][0] = 0
    return [value.astype(np.float32) for value in values]


def graph(vectors, weights, bias):
    """The vectors of the tokens, their mean where the mask is 1, one linear layer."""
    constants = [
        numpy_helper.from_array(vectors, "vectors"),
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(bias, "bias"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "tokens_axis"),
        numpy_helper.from_array(np.array([2], dtype=np.int64), "vector_axis"),
    ]
    node = helper.make_node
    nodes = [
        node("Gather", ["vectors", "ids"], ["all"]),
        node("Unsqueeze", ["mask", "vector_axis"], ["column"]),
        node("Mul", ["all", "column"], ["masked"]),
        node("ReduceSum", ["masked", "tokens_axis"], ["sum"], keepdims=0),
        node("ReduceSum", ["mask", "tokens_axis"], ["count"], keepdims=1),
        node("Div", ["sum", "count"], ["mean"]),
        node("MatMul", ["mean", "weights"], ["product"]),
        node("Add", ["product", "bias"], ["scores"]),
        node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    value = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "language_encoder",
            [
                value("ids", TensorProto.INT64, ["batch", LENGTH]),
                value("mask", TensorProto.FLOAT, ["batch", LENGTH]),
            ],
            [value("probabilities", TensorProto.FLOAT, ["batch", len(bias)])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="make.py",
    )
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return model


def main():
    languages, texts, labels, is_held_out = sentences()
    known = [text for text, is_out in zip(texts, is_held_out) if not is_out]
    tokenizer = train_tokenizer(known)
    tokenizer.save(str(TOKENIZER / "tokenizer.json"))
    lines = [f"{first:x} {last:x}\n" for first, last in punctuation(tokenizer)]
    (TOKENIZER / "punctuation.txt").write_text("".join(lines))
    plain = WordPiece(TOKENIZER)
    check(tokenizer, plain, texts)

    model = graph(*train(*examples(plain, known, labels[~is_held_out]), len(languages)))
    file = HERE / "language_encoder" / "1" / "model.onnx"
    file.write_bytes(model.SerializeToString(deterministic=True))
    (HERE / "language_labels" / "1" / "labels.txt").write_text("\n".join(languages) + "\n")

    ids = np.array([plain.encode(text, LENGTH) for text in texts])
    mask = (ids != 0).astype(np.float32)
    (probabilities,) = ReferenceEvaluator(model).run(None, {"ids": ids, "mask": mask})
    is_right = probabilities.argmax(axis=1) == labels
    sure = np.median(probabilities.max(axis=1)[is_held_out])
    print(f"model {file.stat().st_size} bytes, longest sentence {int(mask.sum(axis=1).max())} tokens")
    print(f"held out: {is_right[is_held_out].sum()} of {is_held_out.sum()} right, median score {sure:.3f}")
    print(f"trained on: {is_right[~is_held_out].sum()} of {(~is_held_out).sum()} right")


if __name__ == "__main__":
    main()

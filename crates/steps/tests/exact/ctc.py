"""Greedy CTC as PP-OCR's CTCLabelDecode and transformers' Wav2Vec2CTCTokenizer do it. Where transformers is installed, the
latter is held to the tokenizer itself."""

import json
import sys
from itertools import groupby

import numpy as np

from cases import Cases, texts

try:
    from transformers import Wav2Vec2CTCTokenizer
except ImportError:
    Wav2Vec2CTCTokenizer = None

rng = np.random.default_rng(11)
cases = Cases(sys.argv[1], "cases")
count = 3_000 if sys.argv[2] == "whole" else 150
ALPHABET = list("abcdefghijklmnopqrstuvwxyz'.,!?") + ["é", "中", "𝄞", "n't", "ab", " "]


def ppocr(predictions, characters):
    index, probability = predictions.argmax(axis=2), predictions.max(axis=2)
    result = []
    for row in range(len(index)):
        selection = np.ones(len(index[row]), dtype=bool)
        selection[1:] = index[row][1:] != index[row][:-1]
        selection &= index[row] != 0
        confidences = probability[row][selection]
        if len(confidences) == 0:
            confidences = [0]
        result.append(("".join(characters[i] for i in index[row][selection]), np.mean(confidences).tolist()))
    return result


def clean_up(text):
    for old in " .", " ?", " !", " ,":
        text = text.replace(old, old[1])
    text = text.replace(" ' ", "'").replace(" n't", "n't").replace(" 'm", "'m").replace(" 's", "'s")
    return text.replace(" 've", "'ve").replace(" 're", "'re")


def wav2vec2(logits, vocabulary, separator):
    decoder = {index: token for token, index in vocabulary.items()}
    result = []
    for row in logits.argmax(-1):
        tokens = [group[0] for group in groupby(decoder[int(index)] for index in row)]
        tokens = [token for token in tokens if token != "<pad>"]
        result.append(separator.join(" " if token == "|" else token for token in tokens).strip())
    return result


def predict(rows, time, symbols, blank):
    x = rng.random((rows, time, symbols)).astype(np.float32)
    x[:, :, blank] += rng.choice([0, 0.3, 0.9]) * rng.random((rows, time)).astype(np.float32)
    # Repeats.
    for _ in range(time // 2):
        at = int(rng.integers(0, time))
        x[:, at] = x[:, max(at - 1, 0)]
    return x / x.sum(-1, keepdims=True) if rng.random() < 0.5 else np.round(x * 4) / 4


held = 0
for _ in range(count):
    rows, time = int(rng.integers(1, 4)), int(rng.choice([1, 5, 40, 200]))
    alphabet = [ALPHABET[index] for index in rng.permutation(len(ALPHABET))[:int(rng.integers(1, len(ALPHABET) + 1))]]
    has_space = bool(rng.random() < 0.5)
    characters = ["blank", *alphabet] + ([" "] if has_space else [])
    x = predict(rows, time, len(characters), 0)
    want = ppocr(x, characters)
    cases.add({"step": "ctc", "vocabulary_file": "dict.txt", "has_blank": False, "append_space": has_space}, {"logits": x}, {
        "text": texts([text for text, _ in want]), "score": np.array([score for _, score in want], np.float32),
    }, {"dict.txt": "".join(line + "\n" for line in alphabet)})
    # The blank at the end; probabilities of logits.
    moved = np.concatenate([x[:, :, 1:], x[:, :, :1]], 2)
    if (np.diff(np.sort(x, -1), axis=-1) > 0).all():
        e = np.exp(moved - moved.max(-1, keepdims=True))
        probability = ppocr((np.roll(e, 1, -1) / e.sum(-1, keepdims=True)), characters)
        cases.add({"step": "ctc", "vocabulary": alphabet + ([" "] if has_space else []), "has_blank": False, "blank": -1,
                   "activation": "softmax"}, {"logits": moved},
                  {"text": texts([text for text, _ in want]), "score": (np.array([score for _, score in probability], np.float32), 1e-6, 0)})
    tokens = ["<pad>", "|", *[letter for letter in alphabet if letter != " "]]
    vocabulary = {tokens[index]: place for place, index in enumerate(rng.permutation(len(tokens)).tolist())}
    x = predict(rows, time, len(tokens), vocabulary["<pad>"])
    separator = " " if rng.random() < 0.2 else ""
    want = wav2vec2(x, vocabulary, separator)
    step = {"step": "ctc", "vocabulary_file": "vocab.json", "blank": vocabulary["<pad>"], "word_delimiter": "|", "separator": separator}
    files = {"vocab.json": json.dumps(vocabulary)}
    if Wav2Vec2CTCTokenizer and held < 300:
        with open(f"{sys.argv[1]}/vocab.json", "w") as file:
            json.dump(vocabulary, file)
        tokenizer = Wav2Vec2CTCTokenizer(f"{sys.argv[1]}/vocab.json")
        for row, text in zip(x.argmax(-1).tolist(), want):
            options = {"spaces_between_special_tokens": bool(separator)}
            assert tokenizer.decode(row, clean_up_tokenization_spaces=False, **options) == text
            assert tokenizer.decode(row, clean_up_tokenization_spaces=True, **options) == clean_up(text)
        held += 1
    cases.add(step, {"logits": x}, {"text": texts(want)}, files)
    cases.add({**step, "clean_up": True}, {"logits": x}, {"text": texts([clean_up(text) for text in want])}, files)
print(f"{held} vocabularies held to transformers")

"""From a sentence to numbers: each three letters in a row are one token. `make.py` uses the same code to train."""

import zlib

import numpy as np

# Rows of the embedding. Row 0 is for padding, so that a short sentence is as long as a long one.
TOKEN_COUNT = 1024


def trigrams(sentence):
    """` the cat ` is ` th`, `the`, `he `, ` ca`, `cat`, `at `: the ends of words tell most."""
    letters = "".join(char if char.isalpha() else " " for char in sentence.lower())
    return [f" {word} "[at : at + 3] for word in letters.split() for at in range(len(word))]


def encode(sentence, length):
    """The numbers of the first `length` trigrams. There is no list of words: a hash chooses the number, the same in each
    process and version of Python."""
    numbers = [1 + zlib.crc32(text.encode()) % (TOKEN_COUNT - 1) for text in trigrams(sentence)[:length]]
    ids = np.zeros(length, dtype=np.int64)
    ids[: len(numbers)] = numbers
    return ids

"""From a sentence to numbers, by a `tokenizer.json` with the parts of BERT: words and signs, then the longest pieces that the
vocabulary has of each word. The package `tokenizers` gives the same numbers, and the step `tokenize` too."""

import json
import os
import re

# White space of Unicode. Python's `\s` has four control characters besides.
SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def pieces(word, vocabulary):
    """The longest pieces of a word, from the left: `tickets` is `t`, `##i`, `##ck`, `##et`, `##s`. `##` is before all but the
    first."""
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        found.append(piece)
        start = end
    return found


class WordPiece:
    def __init__(self, folder):
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
            model = json.load(file)["model"]
        self.vocabulary, self.word_length = model["vocab"], model["max_input_chars_per_word"]
        # The first and the last character of each range. Python's `unicodedata` would follow another version of Unicode.
        with open(os.path.join(folder, "punctuation.txt"), encoding="ascii") as file:
            ranges = [line.split() for line in file]
        signs = "".join(rf"\U{first:0>8}-\U{last:0>8}" for first, last in ranges)
        self.words = re.compile(f"[{signs}]|[^{signs}{SPACE}]+").findall

    def encode(self, sentence, length, vocabulary=None):
        """The numbers of `[CLS]` and the first pieces, filled up to a length with those of `[PAD]`."""
        vocabulary = vocabulary or self.vocabulary
        names = ["[CLS]"]
        for word in self.words(sentence.lower()):
            names += pieces(word, vocabulary) if len(word) <= self.word_length else ["[UNK]"]
        names = names[:length] + ["[PAD]"] * (length - len(names))
        return [self.vocabulary[name] for name in names]

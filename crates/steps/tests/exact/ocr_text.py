"""Lines of text from the output of a recogniser, as rapidocr reads them: its scores are rounded to five places."""

import sys

import numpy as np

from cases import Cases, texts
from ocr_boxes import recognised

rng = np.random.default_rng(16)
cases = Cases(sys.argv[1], "cases")
is_whole = sys.argv[2] == "whole"
if is_whole:
    from rapidocr.ch_ppocr_rec.utils import CTCLabelDecode

count, held = (500 if is_whole else 60), 0
for _ in range(count):
    rows, time = int(rng.integers(1, 4)), int(rng.choice([1, 5, 40, 80]))
    alphabet = [chr(code) for code in rng.choice([*range(0x21, 0x7F), *range(0x4E00, 0x4F00), 0x3000, 0xDF], int(rng.choice([2, 10, 97])), False)]
    characters = ["blank", *alphabet, " "]
    x = rng.random((rows, time, len(characters))).astype(np.float32)
    place = rng.integers(0, len(characters), (rows, time)) * (rng.random((rows, time)) < 0.6)
    for step in range(1, time):
        place[:, step] = np.where(rng.random(rows) < 0.4, place[:, step - 1], place[:, step])
    np.put_along_axis(x, place[:, :, None], 4.0, 2)
    x = np.exp(x * 3) / np.exp(x * 3).sum(-1, keepdims=True)
    want = [recognised(own, characters) for own in x]
    if is_whole:
        decode = CTCLabelDecode(character=list(alphabet))
        assert decode.character == characters
        assert decode(x)[0] == want
        held += rows
    # Two roundings to five places, of each value and of the mean.
    cases.add({"step": "ctc", "vocabulary_file": "dict.txt", "has_blank": False, "append_space": True}, {"logits": x},
              {"text": texts([text for text, _ in want]), "score": (np.array([score for _, score in want], np.float32), 0, 1.05e-5)},
              {"dict.txt": "".join(line + "\n" for line in alphabet)})
print(f"{held} lines held to rapidocr")

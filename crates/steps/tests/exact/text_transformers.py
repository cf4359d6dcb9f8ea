"""Cases of `tokenize` with a `tokenizer_config.json`, and what `transformers` makes of them: in the form of text.py.

python text_transformers.py FOLDER COUNT: COUNT strings for each set of parameters."""

import json
import random
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import text
from transformers import PreTrainedTokenizerFast

# For each set: the tokenizer, its tokenizer_config.json, the step's parameters, the call's, rows of a request, pairs.
SETS = [
    ("wordpiece", {"model_max_length": 16, "pad_token": "[PAD]"}, {}, {"padding": True, "truncation": True}, 8, False),
    ("wordpiece", {"model_max_length": 16, "pad_token": "[PAD]"}, {}, {"padding": True, "truncation": True}, 8, True),
    ("wordpiece", {"model_max_length": 1000000000000000019884624838656, "pad_token": "[PAD]"}, {},
     {"padding": True, "truncation": True}, 8, False),
    ("wordpiece_cased", {"model_max_length": 12, "pad_token": "[PAD]", "padding_side": "left", "truncation_side": "left"}, {},
     {"padding": True, "truncation": True}, 8, False),
    ("bytelevel", {"model_max_length": 32, "pad_token": "<pad>"}, {"padding": "max_length"},
     {"padding": "max_length", "truncation": True}, 5, False),
    ("bytelevel", {"model_max_length": 32, "pad_token": {"content": "<pad>", "__type": "AddedToken", "lstrip": False,
                                                        "normalized": True, "rstrip": False, "single_word": False}},
     {"max_length": 17, "pad_to_multiple_of": 4, "truncation": "off"}, {"padding": True, "pad_to_multiple_of": 4}, 7, True),
    ("unigram", {"model_max_length": 24, "pad_token": "<pad>"}, {"padding": "max_length", "max_length": 20},
     {"padding": "max_length", "truncation": True, "max_length": 20}, 4, True),
    ("unigram", {"pad_token": "<pad>", "pad_token_type_id": 3}, {"max_length": 9, "add_special_tokens": False},
     {"padding": True, "truncation": "longest_first", "max_length": 9, "add_special_tokens": False}, 6, True),
    ("fallback", {"model_max_length": 40, "pad_token": "<pad>", "truncation_side": "left"}, {"padding_side": "left"},
     {"padding": True, "truncation": True, "padding_side": "left"}, 9, False),
    ("fallback", {"model_max_length": 40}, {"padding": "off", "truncation": "only_second"}, {"truncation": "only_second"}, 1, True),
]


def rows(tokenizer, texts, pairs, call, count):
    refused = struct.pack("<II", 0xFFFFFFFF, 0)
    for start in range(0, len(texts), count):
        batch = texts[start:start + count]
        pair = (pairs[start:start + count],) if pairs else ()
        try:
            got = tokenizer(batch, *pair, return_offsets_mapping=True, return_special_tokens_mask=True,
                            return_token_type_ids=True, return_attention_mask=True, **call)
        except Exception:
            yield from [refused] * len(batch)
            continue
        names = ["input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "offset_mapping"]
        for index in range(len(batch)):
            # From 1, with 0 for special tokens and padding.
            places = [[0 if place is None else place + 1 for place in part]
                      for part in (got.sequence_ids(index), got.word_ids(index))]
            data = b"".join(np.array(part, dtype=np.uint32).tobytes() for part in [*(got[name][index] for name in names), *places])
            yield struct.pack("<II", len(got["input_ids"][index]), zlib.crc32(data))


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    text.trained(folder)
    source = random.Random(5)
    cases = []
    for index, (name, config, given, call, at_once, has_pairs) in enumerate(SETS):
        model = folder / f"model{index}"
        model.mkdir()
        (model / "tokenizer.json").write_bytes((folder / f"{name}.json").read_bytes())
        written = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
        (model / "tokenizer_config.json").write_text(written)
        (folder / f"{index}.json").write_text(written)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
        texts = [text.string(source) for _ in range(count - count % at_once)]
        pairs = [text.string(source) for _ in texts] if has_pairs else None
        case = f"transformers{index}"
        (folder / f"{case}.texts").write_bytes(text.packed(texts))
        if pairs:
            (folder / f"{case}.pairs").write_bytes(text.packed(pairs))
        (folder / f"{case}.rows").write_bytes(b"".join(rows(tokenizer, texts, pairs, call, at_once)))
        parameters = json.dumps({"config": f"{index}.json", **given})
        cases.append(f"{case}\t{name}.json\t{parameters}\t{at_once}\t{'pairs' if pairs else ''}")
    (folder / "cases").write_text("\n".join(cases))
    for name in ["wordpiece", "unigram"]:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / f"{name}.json"))
        texts = [" ".join(source.choice(["it", "do", "n't", "'", "'s", "'m", ".", "?", "!", ",", "we", "'ve", "'re", "  ", "x.", "'"])
                          for _ in range(source.randint(0, 12))) for _ in range(count)]
        ids = [tokenizer(line, add_special_tokens=True)["input_ids"] for line in texts]
        (folder / f"{name}.ids").write_bytes(b"".join(struct.pack(f"<I{len(row)}I", len(row), *row) for row in ids))
        decoded = [tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=True) for row in ids]
        (folder / f"{name}.cleaned").write_bytes(text.packed(decoded))
    (folder / "names").write_text("wordpiece\nunigram")


main()

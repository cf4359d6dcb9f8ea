"""Entities as transformers' TokenClassificationPipeline finds them: its rules on numpy arrays, and its words cut from the text.
Where transformers is installed, the rules are held to the pipeline itself."""

import json
import sys
import warnings

import numpy as np

from cases import Cases, texts

try:
    from transformers.pipelines.token_classification import AggregationStrategy, TokenClassificationPipeline
except ImportError:
    AggregationStrategy = None

rng = np.random.default_rng(12)
cases = Cases(sys.argv[1], "cases")
count = 1_500 if sys.argv[2] == "whole" else 200
F = np.float32
# The pipeline warns of tokenizers without a prefix each time.
warnings.simplefilter("ignore")


def softmax(logits):
    shifted = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def word_of(group, strategy, labels):
    if strategy == "first":
        scores = group[0]["scores"]
    elif strategy == "max":
        scores = max(group, key=lambda entity: entity["scores"].max())["scores"]
    else:
        scores = np.nanmean(np.stack([entity["scores"] for entity in group]), axis=0)
    best = scores.argmax()
    return {"entity": labels[best], "score": scores[best], "start": group[0]["start"], "end": group[-1]["end"]}


def tag(name):
    return (name[0], name[2:]) if name.startswith(("B-", "I-")) else ("I", name)


def group_of(entities, last_hyphen):
    parts = entities[0]["entity"].split("-") if last_hyphen else entities[0]["entity"].split("-", 1)
    return {"entity_group": parts[-1], "score": np.mean(np.nanmean([entity["score"] for entity in entities])),
            "start": entities[0]["start"], "end": entities[-1]["end"]}


def pipeline(scores, offsets, special, text, tokens, strategy, labels, ignore, rule, last_hyphen):
    pre = []
    for index, row in enumerate(scores):
        if special[index]:
            continue
        start, end = offsets[index]
        if rule == "length":
            subword = len(tokens[index]) != len(text[start:end]) and tokens[index] != "[UNK]"
        elif rule == "space":
            subword = bool(start > 0 and " " not in text[start - 1:start + 1])
        else:
            subword = text[start - 1:start] != " " if start > 0 else False
        pre.append({"scores": row, "start": int(start), "end": int(end), "index": index, "is_subword": subword})
    if strategy in ("none", "simple"):
        entities = [{"entity": labels[entity["scores"].argmax()], "score": entity["scores"].max(), "index": entity["index"],
                     "start": entity["start"], "end": entity["end"]} for entity in pre]
    else:
        entities, group = [], []
        for entity in pre:
            if group and not entity["is_subword"]:
                entities.append(word_of(group, strategy, labels))
                group = []
            group.append(entity)
        if group:
            entities.append(word_of(group, strategy, labels))
    if strategy != "none":
        groups, group = [], []
        for entity in entities:
            if group:
                begins, own = tag(entity["entity"])
                if not (own == tag(group[-1]["entity"])[1] and begins != "B"):
                    groups.append(group_of(group, last_hyphen))
                    group = []
            group.append(entity)
        entities = groups + ([group_of(group, last_hyphen)] if group else [])
    return [entity for entity in entities if entity.get("entity") not in ignore and entity.get("entity_group") not in ignore]


class Tokenizer:
    """What the pipeline asks of a tokenizer; ids are places."""

    def __init__(self, tokens, rule):
        self.tokens = tokens
        self.unk_token_id = -1
        prefix = "##" if rule == "length" else None
        self._tokenizer = type("", (), {"model": type("", (), {"continuing_subword_prefix": prefix})})

    def convert_ids_to_tokens(self, place):
        return self.tokens[place]

    def convert_tokens_to_string(self, tokens):
        return ""


def library(scores, offsets, special, text, tokens, strategy, labels, ignore, rule):
    """The pipeline of transformers 5 on the same, without its words."""
    own = object.__new__(TokenClassificationPipeline)
    own.tokenizer = Tokenizer(tokens, rule)
    own.model = type("", (), {"config": type("", (), {"id2label": dict(enumerate(labels))})})
    ids = [-1 if token == "[UNK]" and rule == "length" else place for place, token in enumerate(tokens)]
    strategy = AggregationStrategy[strategy.upper()]
    pre = own.gather_pre_entities(text, ids, scores, offsets.tolist(), special, strategy)
    entities = own.aggregate(pre, strategy)
    entities = [entity for entity in entities if entity.get("entity") not in ignore and entity.get("entity_group") not in ignore]
    return [{name: value for name, value in entity.items() if name != "word"} for entity in entities]


LETTERS = list("abcdefgh") + ["é", "中", "𝄞", '"', "\\", "."]
SCHEMES = [["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], ["O", "PER", "LOC"], ["O", "B-A-B", "I-A-B", "E-A", "S-A"], ["O", "I-X", "B-X", "I-Y"]]


def sentence():
    """A text, its tokens as WordPiece names them, and their offsets, between special tokens."""
    text, tokens, offsets = "", ["[CLS]"], [(0, 0)]
    spaced = rng.random() < 0.3
    for _ in range(int(rng.integers(0, 8))):
        text += " " if text and rng.random() < 0.85 else ""
        for part in range(int(rng.integers(1, 4))):
            piece = "".join(rng.choice(LETTERS, int(rng.integers(1, 4))))
            token = "[UNK]" if rng.random() < 0.1 else ("##" if part else "") + piece
            tokens.append(token)
            # Byte-level tokenizers count the space before a word to its first token.
            space = int(part == 0 and spaced and text.endswith(" "))
            offsets.append((len(text) - space, len(text) + len(piece)))
            text += piece
    return text, [*tokens, "[SEP]"], [*offsets, (0, 0)]


held = 0
for _ in range(count):
    rows, labels = int(rng.integers(1, 4)), SCHEMES[rng.integers(len(SCHEMES))]
    sentences = [sentence() for _ in range(rows)]
    width = max(len(tokens) for _, tokens, _ in sentences) + int(rng.integers(0, 3))
    tokens = [[*own, *["[PAD]"] * (width - len(own))] for _, own, _ in sentences]
    offsets = np.array([[*own, *[(0, 0)] * (width - len(own))] for _, _, own in sentences], np.int64)
    special = np.array([[token in ("[CLS]", "[SEP]", "[PAD]") for token in own] for own in tokens]).astype(np.int64)
    logits = (rng.standard_normal((rows, width, len(labels))) * 2).astype(F)
    if rng.random() < 0.3:
        logits[:, 1:] = np.where(rng.random((rows, width - 1, 1)) < 0.5, logits[:, :-1], logits[:, 1:])
    scores = softmax(logits)
    text = [own for own, _, _ in sentences]
    ignore = [[], ["O"], ["O", "PER"]][rng.integers(3)]
    for strategy in "none", "simple", "first", "average", "max":
        for rule in "space", "space_before", "length":
            by_length, last_hyphen = rule == "length", bool(rng.random() < 0.3)
            found = [pipeline(*row, strategy, labels, ignore, rule, last_hyphen) for row in zip(scores, offsets, special, text, tokens)]
            if AggregationStrategy and held < 3_000 and rule != "space_before" and not last_hyphen:
                for got, *row in zip(found, scores, offsets, special, text, tokens):
                    assert got == library(*row, strategy, labels, ignore, rule), (row, got)
                held += 1
            most = max(len(entities) for entities in found)
            name = "entity" if strategy == "none" else "entity_group"

            def column(of, fill):
                return [[of(entity, own) for entity in entities] + [fill] * (most - len(entities)) for entities, own in zip(found, text)]

            dumps = [json.dumps([{name: entity[name], "score": float(entity["score"]),
                                  **({"index": entity["index"]} if strategy == "none" else {}),
                                  "word": own[entity["start"]:entity["end"]], "start": entity["start"], "end": entity["end"]}
                                 for entity in entities], ensure_ascii=by_length) for entities, own in zip(found, text)]
            values = np.array(column(lambda entity, _: entity["score"], 0), F).reshape(rows, most)
            wants = {
                "labels": texts(column(lambda entity, _: entity[name], "")).reshape(rows, most),
                "words": texts(column(lambda entity, own: own[entity["start"]:entity["end"]], "")).reshape(rows, most),
                "starts": np.array(column(lambda entity, _: entity["start"], -1), np.int64).reshape(rows, most),
                "ends": np.array(column(lambda entity, _: entity["end"], -1), np.int64).reshape(rows, most),
                "counts": np.array([len(entities) for entities in found]),
            }
            step = {"step": "spans", "strategy": strategy, "labels": labels, "ignore_labels": ignore, "ascii": by_length,
                    "subwords": rule, "group_label": "last_hyphen" if last_hyphen else "first_hyphen"}
            inputs = {"offsets": offsets, "text": texts(text)}
            if by_length:
                inputs["tokens"] = texts(tokens)
            if rng.random() < 0.5:
                inputs["special_mask"] = special
            # With given scores all is equal; after our own softmax, scores are near, and ties of means could differ.
            cases.add({**step, "activation": "none"}, {"logits": scores, **inputs}, {"json": texts(dumps), "scores": values, **wants})
            if strategy != "average":
                cases.add(step, {"logits": logits, **inputs}, {"scores": (values, 1e-6, 0), **wants})
print(f"{held} sets of rules held to transformers")

"""pipelines.py DIRECTORY: as folders.py, with small BERT networks of random weights as safetensors, and the answers of transformers'
own pipelines. For release 4.44 of transformers, the last one that takes the PyTorch of Debian 12."""

import os
import sys

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (BertConfig, BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification,
                          PreTrainedTokenizerFast, pipeline)

WORDS = "a b the cat dog sat on mat berlin paris anna lives in this example is , . un ##believ ##able ##s good bad who where".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
QUESTIONS = ["who lives in Berlin", "a", "where sat the dog", "unbelievable", "good"]
CONTEXTS = ["Anna lives in Berlin, unbelievable dogs sat on the mat.", "Straße 中文 Paris", "a b a b", "good bad " * 20, "mat"]


def tokenizer():
    made = Tokenizer(models.WordPiece({word: index for index, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]")


def saved(folder, kind, labels):
    config = BertConfig(vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                        max_position_embeddings=64, initializer_range=0.3, id2label=dict(enumerate(labels)),
                        label2id={label: index for index, label in enumerate(labels)})
    network = kind(config).eval()
    network.save_pretrained(folder, safe_serialization=True)
    tokenizer().save_pretrained(folder)
    # In FP64: the distance to what the server computes in FP32 is then the server's own rounding, and not that of two.
    return {"model": network.double(), "tokenizer": tokenizer(), "framework": "pt"}


def answers(folder):
    ask = pipeline("question-answering", **saved(folder, BertForQuestionAnswering, ["LABEL_0", "LABEL_1"]))
    for question, context in zip(QUESTIONS, CONTEXTS):
        # The pipeline has windows of 384 tokens: those of a network with 64 positions are 64.
        found = ask(question=question, context=context, max_seq_len=64, doc_stride=32)
        yield {"model": "answers", "inputs": {"question": [question], "context": [context]},
               "outputs": {name: [found[name]] for name in ("answer", "score", "start", "end")}}


def zero_shot(folder):
    classify = pipeline("zero-shot-classification", **saved(folder, BertForSequenceClassification, ["contradiction", "neutral", "entailment"]))
    for labels, more in [(["cat", "dog", "Paris"], {}), (["good", "bad"], {"multi_label": True}), (["mat"], {}),
                         (["a", "b", "un", "good"], {"multi_label": False, "hypothesis_template": "{} lives in the mat"})]:
        for text in (*CONTEXTS[:2], "good " * 100):
            found = classify(text, labels, **more)
            yield {"model": "zero_shot", "flat": True,
                   "inputs": {"text": [text], "labels": labels, **{name: [value] for name, value in more.items()}},
                   "outputs": {"label": found["labels"], "score": found["scores"]}}


def entities(folder):
    parts = saved(folder, BertForTokenClassification, ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    find = pipeline("token-classification", aggregation_strategy="simple", **parts)
    for text in CONTEXTS[:3]:
        found = find(text)
        outputs = {name: [[one[key] for one in found]] for name, key in (("label", "entity_group"), ("start", "start"), ("end", "end"))}
        outputs["score"] = [[float(one["score"]) for one in found]]
        yield {"model": "entities", "inputs": {"text": [text]}, "outputs": {**outputs, "count": [len(found)]}}


def classes(folder):
    classify = pipeline("text-classification", top_k=None, **saved(folder, BertForSequenceClassification, ["sad", "calm", "glad"]))
    for text in CONTEXTS:
        # Truncated as a server does it, not refused.
        (found,) = classify([text], truncation=True)
        yield {"model": "classes", "inputs": {"text": [text]},
               "outputs": {"label": [[one["label"] for one in found]], "score": [[one["score"] for one in found]]}}


def main():
    import json

    directory = sys.argv[1]
    torch.manual_seed(5)
    cases = []
    for kind in (answers, zero_shot, entities, classes):
        cases += kind(os.path.join(directory, "models", kind.__name__))
    with open(os.path.join(directory, "expected.json"), "w") as file:
        json.dump(cases, file, default=lambda value: value.item() if isinstance(value, np.generic) else value)


main()

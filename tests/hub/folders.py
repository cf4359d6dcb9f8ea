"""Writes folders as the Hugging Face hub has them, with small networks of random weights, and what they answer.

folders.py DIRECTORY: each folder beneath DIRECTORY/models, the answers in DIRECTORY/expected.json. The answers are computed
here from the files with `tokenizers`, ONNX Runtime and numpy, as transformers and sentence-transformers do.
"""

import io
import json
import os
import struct
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HIDDEN = 32
WORDS = "a b the cat dog sat on mat Berlin Paris Anna lives in query passage : , . un ##believ ##able ##s good bad".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *[word.lower() for word in WORDS], "[MASK]", "[Q] ", "[D] "]
TEXTS = ["The cat sat on the mat.", "a", "Anna lives in Berlin, unbelievable dogs", "good " * 40, "Straße 中文", ""]
RANDOM = np.random.default_rng(7)


def weights(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32) / 2


def write(folder, name, contents):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(contents if isinstance(contents, bytes) else json.dumps(contents, indent=2).encode())


def network(folder, file, output, heads, has_types=True):
    """A network of texts: states that depend on the mask, and behind them a matrix. `heads`: states, row or tokens."""
    types = [helper.make_tensor_value_info("token_type_ids", TensorProto.INT64, ["batch", "length"])] if has_types else []
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")]
    constants = {"words": weights(len(VOCABULARY), HIDDEN), "kinds": weights(2, HIDDEN), "mixing": weights(HIDDEN, HIDDEN),
                 "axis": np.array([1]), "last": np.array([-1]), "first": np.array(0)}
    nodes = [helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
             helper.make_node("Cast", ["attention_mask"], ["mask_float"], to=TensorProto.FLOAT),
             helper.make_node("Unsqueeze", ["mask_float", "last"], ["mask_column"]),
             helper.make_node("Mul", ["embedded", "mask_column"], ["kept"]),
             helper.make_node("ReduceSum", ["kept", "axis"], ["sums"], keepdims=1),
             helper.make_node("ReduceSum", ["mask_column", "axis"], ["counts"], keepdims=1),
             helper.make_node("Div", ["sums", "counts"], ["means"]),
             helper.make_node("MatMul", ["means", "mixing"], ["mixed"]),
             helper.make_node("Add", ["embedded", "mixed"], ["summed"])]
    summed = "summed"
    if has_types:
        nodes += [helper.make_node("Gather", ["kinds", "token_type_ids"], ["typed"]),
                  helper.make_node("Add", ["summed", "typed"], ["with_types"])]
        summed = "with_types"
    states = output if heads == "states" else "states"
    nodes.append(helper.make_node("Tanh", [summed], [states]))
    shape = ["batch", "length", HIDDEN]
    if heads != "states":
        kind, count = heads
        constants["head"] = weights(HIDDEN, count)
        source = "states"
        if kind == "row":
            nodes.append(helper.make_node("Gather", ["states", "first"], ["row"], axis=1))
            source = "row"
        nodes.append(helper.make_node("MatMul", [source, "head"], [output]))
        shape = ["batch", count] if kind == "row" else ["batch", "length", count]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(nodes, "network", inputs + types, [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
                              [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    write(folder, file, model.SerializeToString())


def tokenizer(folder, length=512):
    """BERT's parts. The file itself pads and truncates every text to 128 tokens, which nothing that reads it does."""
    made = Tokenizer(models.WordPiece({word: index for index, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_padding(length=128, pad_id=0, pad_token="[PAD]")
    made.enable_truncation(128)
    os.makedirs(folder, exist_ok=True)
    made.save(os.path.join(folder, "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"model_max_length": length, "pad_token": "[PAD]", "tokenizer_class": "BertTokenizerFast"})
    write(folder, "special_tokens_map.json", {"pad_token": "[PAD]"})


def config(folder, architecture, **more):
    write(folder, "config.json", {"architectures": [architecture], "model_type": "bert", "hidden_size": HIDDEN, "pad_token_id": 0,
                                  "max_position_embeddings": 64, "vocab_size": len(VOCABULARY), **more})


def encode(folder, texts, length, pairs=None, stride=None):
    """Padded to the longest row. With a stride, rows are windows of the second texts."""
    read = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    read.no_padding()
    if stride is None:
        read.enable_truncation(length)
    else:
        read.enable_truncation(length, stride=stride, strategy="only_second")
    rows = read.encode_batch(list(zip(texts, pairs)) if pairs else texts)
    rows = [window for row in rows for window in (row, *(row.overflowing if stride is not None else ()))]
    longest = max(len(row.ids) for row in rows)
    padded = lambda values, pad: np.array([row + [pad] * (longest - len(row)) for row in values], dtype=np.int64)
    return rows, {"input_ids": padded([row.ids for row in rows], 0), "attention_mask": padded([row.attention_mask for row in rows], 0),
                  "token_type_ids": padded([row.type_ids for row in rows], 0)}


def run(folder, file, feeds):
    session = onnxruntime.InferenceSession(os.path.join(folder, file))
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: feeds[name] for name in names})[0]


def softmax(scores):
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def sigmoid(scores):
    return 1 / (1 + np.exp(-scores))


def normalized(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def pooled(states, mask):
    """In the order in which sentence-transformers joins them."""
    mask = mask[:, :, None].astype(np.float32)
    total, count = (states * mask).sum(1), np.maximum(mask.sum(1), 1e-9)
    places = np.arange(1, states.shape[1] + 1, dtype=np.float32)[None, :, None] * mask
    ends = mask.sum(1)[:, 0].astype(int) - 1
    return {"cls_token": states[:, 0], "max_tokens": np.where(mask == 0, -1e9, states).max(1), "mean_tokens": total / count,
            "mean_sqrt_len_tokens": total / np.sqrt(count), "weightedmean_tokens": (states * places).sum(1) / places.sum(1),
            "lasttoken": states[np.arange(len(states)), ends]}


def safetensors(tensors):
    header, contents = {}, b""
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(contents), len(contents) + value.nbytes]}
        contents += value.tobytes()
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + contents


def sentence_transformer(folder, modes, rest=(), prefix="sentence_transformers.models."):
    modules = [{"idx": 0, "name": "0", "path": "", "type": prefix + "Transformer"},
               {"idx": 1, "name": "1", "path": "1_Pooling", "type": prefix + "Pooling"}]
    for kind in rest:
        number = len(modules)
        modules.append({"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": prefix + kind})
    write(folder, "modules.json", modules)
    names = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    flags = {f"pooling_mode_{name}": name in modes for name in names}
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, **flags, "include_prompt": True})


def case(model, inputs, outputs):
    values = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in outputs.items()}
    return {"model": model, "inputs": inputs, "outputs": values}


def embedders(at):
    folder = at("minilm")
    network(folder, "onnx/model.onnx", "last_hidden_state", "states")
    # A file of another precision, which is not chosen.
    write(folder, "onnx/model_qint8_avx512_vnni.onnx", b"not read")
    tokenizer(folder)
    config(folder, "BertModel")
    sentence_transformer(folder, ["mean_tokens"], ["Normalize"])
    write(folder, "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})
    prompts = {"query": "query: ", "passage": "passage: ", "plain": ""}
    write(folder, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    for name, prompt in [(None, "query: "), *prompts.items()]:
        _, feeds = encode(folder, [prompt + text for text in TEXTS], 16)
        vectors = normalized(pooled(run(folder, "onnx/model.onnx", feeds), feeds["attention_mask"])["mean_tokens"])
        chosen = {} if name is None else {"prompt_name": [name] * len(TEXTS)}
        yield case("minilm", {"text": TEXTS, **chosen}, {"embedding": vectors})

    folder = at("encoder")
    network(folder, "model.onnx", "last_hidden_state", "states", has_types=False)
    tokenizer(folder, length=10**30)
    config(folder, "BertModel")
    _, feeds = encode(folder, TEXTS, 64)
    yield case("encoder", {"text": TEXTS}, {"embedding": pooled(run(folder, "model.onnx", feeds), feeds["attention_mask"])["mean_tokens"]})

    folder = at("joined")
    # Of another name than the usual one: the only output with this rank.
    network(folder, "onnx/model_O3.onnx", "output_7", "states")
    tokenizer(folder, length=20)
    config(folder, "BertModel")
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    # Without the pickle's suffix: the classes have other paths in releases from 5.
    sentence_transformer(folder, modes, ["Dense", "Dense", "Normalize"], "sentence_transformers.sentence_transformer.modules.")
    first, bias, second = weights(16, 6 * HIDDEN), weights(16), weights(8, 16)
    torch = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
    write(folder, "2_Dense/config.json", {"in_features": 6 * HIDDEN, "out_features": 16, "bias": True, "activation_function": torch[0]})
    write(folder, "2_Dense/model.safetensors", safetensors({"linear.weight": first, "linear.bias": bias}))
    write(folder, "3_Dense/config.json", {"in_features": 16, "out_features": 8, "bias": False, "activation_function": torch[1]})
    write(folder, "3_Dense/model.safetensors", safetensors({"linear.weight": second}))
    _, feeds = encode(folder, TEXTS, 20)
    parts = pooled(run(folder, "onnx/model_O3.onnx", feeds), feeds["attention_mask"])
    order = ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    vectors = np.concatenate([parts[name] for name in order], axis=1)
    yield case("joined", {"text": TEXTS}, {"embedding": normalized(np.tanh(vectors @ first.T + bias) @ second.T)})

    folder = at("splade")
    network(folder, "onnx/model.onnx", "logits", ("tokens", len(VOCABULARY)))
    tokenizer(folder)
    config(folder, "BertForMaskedLM")
    path = "sentence_transformers.sparse_encoder.models."
    write(folder, "modules.json", [{"idx": 0, "name": "0", "path": "", "type": path + "MLMTransformer"},
                                   {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": path + "SpladePooling"}])
    write(folder, "1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    for text in TEXTS:
        _, feeds = encode(folder, [text], 64)
        scores = np.log1p(np.maximum(run(folder, "onnx/model.onnx", feeds), 0)).max(1)
        index = np.nonzero(scores[0])[0]
        yield case("splade", {"text": [text]}, {"index": [index.tolist()], "value": [scores[0][index].tolist()], "count": [len(index)]})


def classifiers(at):
    labels = {"id2label": {"0": "sad", "1": "calm", "2": "gläd"}}
    for name, more, scores in [("single", labels, softmax), ("multi", {**labels, "problem_type": "multi_label_classification"}, sigmoid),
                               ("numbers", {**labels, "problem_type": "regression"}, lambda scores: scores), ("unnamed", {}, softmax)]:
        folder = at(name)
        network(folder, "model.onnx", "logits", ("row", 3))
        tokenizer(folder)
        config(folder, "BertForSequenceClassification", **more)
        _, feeds = encode(folder, TEXTS, 64)
        got = scores(run(folder, "model.onnx", feeds))
        order = np.argsort(-got, axis=1, kind="stable")
        names = list(more.get("id2label", {str(index): f"LABEL_{index}" for index in range(3)}).values())
        yield case(name, {"text": TEXTS}, {"label": [[names[index] for index in row] for row in order],
                                           "score": np.take_along_axis(got, order, axis=1)})
    queries = ["the cat", "a", "Paris", "good bad", "un", "dog " * 40]
    identity = "torch.nn.modules.linear.Identity"
    for name, more, scores in [("cross", {}, sigmoid), ("cross_raw", {"sbert_ce_default_activation_function": identity}, lambda scores: scores),
                               ("cross_new", {"sentence_transformers": {"activation_fn": identity}}, lambda scores: scores)]:
        folder = at(name)
        network(folder, "model.onnx", "logits", ("row", 1))
        tokenizer(folder)
        config(folder, "BertForSequenceClassification", id2label={"0": "LABEL_0"}, **more)
        _, feeds = encode(folder, queries, 64, TEXTS)
        yield case(name, {"query": queries, "text": TEXTS}, {"score": scores(run(folder, "model.onnx", feeds))[:, 0]})
    folder = at("one_number")
    network(folder, "model.onnx", "logits", ("row", 1))
    tokenizer(folder)
    config(folder, "BertForSequenceClassification", id2label={"0": "LABEL_0"}, problem_type="regression")
    _, feeds = encode(folder, TEXTS, 64)
    yield case("one_number", {"text": TEXTS}, {"score": run(folder, "model.onnx", feeds)[:, 0]})


def entities(labels, scores, offsets, text):
    """transformers' `group_entities`: neighbours of one label are joined, unless the next begins with B-."""
    groups = []
    for row, (start, end) in zip(scores, offsets):
        label = labels[int(row.argmax())]
        mark, kind = (label[0], label[2:]) if label[:2] in ("B-", "I-") else ("I", label)
        if groups and groups[-1]["kind"] == kind and mark != "B":
            groups[-1]["scores"].append(row.max())
            groups[-1]["end"] = end
        else:
            groups.append({"kind": kind, "scores": [row.max()], "start": start, "end": end})
    kept = [group for group in groups if group["kind"] != "O"]
    return {"label": [[group["kind"] for group in kept]], "score": [[float(np.mean(group["scores"])) for group in kept]],
            "word": [[text[group["start"]:group["end"]] for group in kept]], "start": [[group["start"] for group in kept]],
            "end": [[group["end"] for group in kept]], "count": [len(kept)]}


def taggers(at):
    folder = at("ner")
    network(folder, "model.onnx", "logits", ("tokens", 5))
    tokenizer(folder)
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    config(folder, "BertForTokenClassification", id2label={str(index): label for index, label in enumerate(labels)})
    for text in TEXTS:
        rows, feeds = encode(folder, [text], 64)
        scores = softmax(run(folder, "model.onnx", feeds))[0]
        keep = [index for index, special in enumerate(rows[0].special_tokens_mask) if not special]
        found = entities(labels, scores[keep], [rows[0].offsets[index] for index in keep], text)
        yield case("ner", {"text": [text]}, found)


def changed(folder, file, change):
    """Changes the graph of a file."""
    path = os.path.join(folder, file)
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)


def placed(graph):
    """Adds a vector by `position_ids` to that of each word."""
    graph.input.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "length"]))
    graph.initializer.append(numpy_helper.from_array(weights(70, HIDDEN), "places"))
    graph.node[0].output[0] = "word_vectors"
    graph.node.insert(1, helper.make_node("Gather", ["places", "position_ids"], ["of_places"]))
    graph.node.insert(2, helper.make_node("Add", ["word_vectors", "of_places"], ["embedded"]))


def positioned(at):
    """Positions as an input: from 0, and from the one behind the padding token; and weights in a file of their own."""
    for name, kind, first in [("places", "bert", 0), ("places_behind", "roberta", 2)]:
        folder = at(name)
        network(folder, "model.onnx", "last_hidden_state", "states")
        changed(folder, "model.onnx", placed)
        tokenizer(folder, length=60)
        config(folder, "BertModel", model_type=kind, pad_token_id=1 if first else 0)
        _, feeds = encode(folder, TEXTS, 60)
        feeds["position_ids"] = np.where(feeds["attention_mask"] == 1, np.arange(feeds["input_ids"].shape[1]) + first, max(0, first - 1))
        vectors = pooled(run(folder, "model.onnx", feeds), feeds["attention_mask"])["mean_tokens"]
        yield case(name, {"text": TEXTS}, {"embedding": vectors})
    folder = at("external")
    network(folder, "onnx/model.onnx", "last_hidden_state", "states")
    path = os.path.join(folder, "onnx/model.onnx")
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data", size_threshold=1024)
    tokenizer(folder)
    config(folder, "BertModel")
    _, feeds = encode(folder, TEXTS, 64)
    vectors = pooled(run(folder, "onnx/model.onnx", feeds), feeds["attention_mask"])["mean_tokens"]
    yield case("external", {"text": TEXTS}, {"embedding": vectors})


def best_span(starts, ends, row, context):
    """transformers' `select_starts_ends`, `decode_spans` and `get_indices` for one window: its answer, score, start and end."""
    undesired = np.array([index != 1 for index in row.sequence_ids])
    undesired[0] = False
    starts, ends = (np.where(undesired, np.float32(-10000.0), scores) for scores in (starts, ends))
    starts, ends = (np.exp(scores - scores.max()) for scores in (starts, ends))
    starts, ends = starts / starts.sum(), ends / ends.sum()
    starts[0] = ends[0] = 0.0
    candidates = np.tril(np.triu(np.matmul(starts[:, None], ends[None])), 15 - 1)
    begin, end = np.unravel_index(np.argmax(candidates), candidates.shape)
    if row.token_to_word(begin) is None:
        place = row.offsets[begin][0], row.offsets[end][1]
    else:
        place = row.word_to_chars(row.token_to_word(begin), 1)[0], row.word_to_chars(row.token_to_word(end), 1)[1]
    return context[place[0]:place[1]], float(candidates[begin, end]), place[0], place[1]


def answers(at):
    def two_outputs(graph):
        graph.node.extend([helper.make_node("Split", ["pairs"], ["first", "second"], axis=2),
                           helper.make_node("Squeeze", ["first", "last"], ["start_logits"]),
                           helper.make_node("Squeeze", ["second", "last"], ["end_logits"])])
        del graph.output[:]
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length"])
                            for name in ("start_logits", "end_logits"))

    folder = at("answers")
    network(folder, "model.onnx", "pairs", ("tokens", 2))
    changed(folder, "model.onnx", two_outputs)
    tokenizer(folder)
    config(folder, "BertForQuestionAnswering")
    questions = ["who lives in Berlin", "a", "the dog", "unbelievable", "", "good", "who", "a b a b"]
    contexts = ["Anna lives in Berlin, unbelievable dogs sat on the mat.", "Straße 中文 Paris", "a b a b", "good bad " * 20, "mat", "",
                "good bad a b the mat " * 30 + "unbelievable Straße 中文 Paris. " + "Anna lives in Berlin " * 12, "unbelievable " * 1500]
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"))
    found = []
    for question, context in zip(questions, contexts):
        windows, feeds = encode(folder, [question], 64, [context], stride=32)
        starts, ends = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
        spans = [best_span(starts[index][:len(row.ids)], ends[index][:len(row.ids)], row, context) for index, row in enumerate(windows)]
        # The first of the best, as `sorted` leaves it.
        found.append(max(spans, key=lambda span: span[1]))
    names = ("answer", "score", "start", "end")
    yield case("answers", {"question": questions, "context": contexts}, {name: [one[place] for one in found] for place, name in enumerate(names)})


def zero_shot(at):
    """transformers' `ZeroShotClassificationPipeline.postprocess`."""
    folder = at("zero_shot")
    network(folder, "model.onnx", "logits", ("row", 3))
    tokenizer(folder)
    config(folder, "BertForSequenceClassification", id2label={"0": "contradiction", "1": "neutral", "2": "entailment"})
    for labels, multi, template in [(["cat", "dogs", "Paris"], None, None), (["good", "bad"], True, None), (["mat"], False, None),
                                    (["a", "b", "un", "good"], False, "{} lives in the mat")]:
        for text in ("The cat sat on the mat.", "good " * 60):
            sentences = [(template or "This example is {}.").format(label) for label in labels]
            read = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
            read.no_padding()
            read.enable_truncation(64, strategy="only_first")
            rows = read.encode_batch([(text, sentence) for sentence in sentences])
            longest = max(len(row.ids) for row in rows)
            padded = lambda values: np.array([row + [0] * (longest - len(row)) for row in values], dtype=np.int64)
            feeds = {"input_ids": padded([row.ids for row in rows]), "attention_mask": padded([row.attention_mask for row in rows]),
                     "token_type_ids": padded([row.type_ids for row in rows])}
            logits = run(folder, "model.onnx", feeds)
            scores = softmax(logits[:, [0, 2]])[:, 1] if multi or len(labels) == 1 else softmax(logits[:, 2][None])[0]
            order = np.argsort(-scores, kind="stable")
            more = {} if multi is None else {"multi_label": [multi]}
            more |= {} if template is None else {"hypothesis_template": [template]}
            yield {**case("zero_shot", {"text": [text], "labels": labels, **more},
                          {"label": [labels[index] for index in order], "score": scores[order]}), "flat": True}


def late(at):
    """pylate's `ColBERT.encode`: the prefix behind the first token, queries filled up with masks, documents without the skiplist."""
    folder = at("late")
    network(folder, "onnx/model.onnx", "last_hidden_state", "states")
    tokenizer(folder)
    made = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    made.add_special_tokens(["[MASK]"])
    made.add_tokens(["[Q] ", "[D] "])
    made.save(os.path.join(folder, "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"model_max_length": 512, "pad_token": "[PAD]", "mask_token": "[MASK]"})
    config(folder, "BertModel")
    write(folder, "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                                   {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"}])
    matrix = weights(8, HIDDEN)
    write(folder, "1_Dense/config.json", {"in_features": HIDDEN, "out_features": 8, "bias": False,
                                          "activation_function": "torch.nn.modules.linear.Identity"})
    write(folder, "1_Dense/model.safetensors", safetensors({"linear.weight": matrix}))
    write(folder, "config_sentence_transformers.json", {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12,
                                                        "document_length": 20, "attend_to_expansion_tokens": False,
                                                        "do_query_expansion": True, "skiplist_words": [",", "."]})
    for prompt, length in [("document", 20), ("query", 12)]:
        made.no_padding()
        made.enable_truncation(length - 1)
        rows = [row.ids for row in made.encode_batch(TEXTS)]
        rows = [[row[0], made.token_to_id("[Q] " if prompt == "query" else "[D] "), *row[1:]] for row in rows]
        width = length if prompt == "query" else max(map(len, rows))
        filler = made.token_to_id("[MASK]") if prompt == "query" else 0
        ids = np.array([row + [filler] * (width - len(row)) for row in rows], dtype=np.int64)
        mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
        states = run(folder, "onnx/model.onnx", {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
        vectors = states @ matrix.T
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=2, keepdims=True), 1e-12)
        skipped = [made.token_to_id(word) for word in (",", ".")]
        kept = np.ones_like(mask) if prompt == "query" else mask * ~np.isin(ids, skipped)
        counts = kept.sum(1)
        want = np.zeros((len(rows), counts.max(), 8), np.float32)
        for index, row in enumerate(kept):
            want[index, :counts[index]] = vectors[index][row == 1]
        chosen = {"prompt_name": [prompt] * len(TEXTS)} if prompt == "query" else {}
        yield case("late", {"text": TEXTS, **chosen}, {"vectors": want, "vector_count": counts})


def images(at):
    def network_of_images(folder, output, count):
        nodes = [helper.make_node("ReduceMean", ["pixel_values"], ["means"], axes=[2, 3], keepdims=0),
                 helper.make_node("MatMul", ["means", "head"], [output])]
        graph = helper.make_graph(nodes, "images", [helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["N", 3, 16, 16])],
                                  [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", count])],
                                  [numpy_helper.from_array(weights(3, count) * 8, "head")])
        write(folder, "onnx/model.onnx", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
        write(folder, "preprocessor_config.json", {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}})

    def pixels(image):
        resized = np.asarray(Image.open(io.BytesIO(image)).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))
        return ((resized.transpose(2, 0, 1)[None] / np.float64(255)).astype(np.float32) - np.float32(0.5)) / np.float32(0.5)

    files = []
    for index in range(3):
        file = io.BytesIO()
        Image.fromarray(RANDOM.integers(0, 256, (20 + index, 30, 3), dtype=np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    batch = np.concatenate([pixels(file) for file in files])
    sent = [file.hex() for file in files]
    folder = at("vit")
    network_of_images(folder, "logits", 7)
    config(folder, "ViTForImageClassification", id2label={str(index): f"class {index}" for index in range(7)})
    scores = softmax(run(folder, "onnx/model.onnx", {"pixel_values": batch}))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    yield case("vit", {"image": sent}, {"label": [[f"class {index}" for index in row] for row in order],
                                        "score": np.take_along_axis(scores, order, axis=1)})
    folder = at("clip_vision")
    network_of_images(folder, "image_embeds", 12)
    config(folder, "CLIPVisionModelWithProjection")
    yield case("clip_vision", {"image": sent}, {"embedding": run(folder, "onnx/model.onnx", {"pixel_values": batch})})


def main():
    directory = sys.argv[1]
    at = lambda name: os.path.join(directory, "models", name)
    cases = [one for kind in (embedders, positioned, late, classifiers, taggers, zero_shot, answers, images) for one in kind(at)]
    write(directory, "expected.json", cases)


if __name__ == "__main__":
    main()

"""Models of every family and head, and the answers of transformers.

graphs.py make DIR      folders of models with random weights, inputs and answers
graphs.py check DIR     the ONNX files that were written into them, on ONNX Runtime
graphs.py golden DIR    small cases, whose weights are a formula, as one JSON file for each family
"""

import json
import sys
from pathlib import Path

import numpy
import torch
import transformers

HEADS = ["Model", "ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification", "ForTokenClassification"]
# An answer may differ by rounding alone: in FP32, relative to values of about 1.
DIFFERENCE_MAX = 1e-5
COSINE_MIN = 0.999999

BERT = dict(vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=48)
DISTILBERT = dict(vocab_size=31, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=48)
ROBERTA = dict(BERT, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
MODERNBERT = dict(BERT, num_hidden_layers=4, num_attention_heads=2, local_attention=8, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
DEBERTA = dict(BERT, type_vocab_size=0, relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
               pos_att_type=["p2c", "c2p"], position_biased_input=False, layer_norm_eps=1e-7)

# Name: class, settings. Variants beside the first of a family have settings that change the graph.
FAMILIES = {
    "bert": ("Bert", BERT),
    "bert_relu_one_type": ("Bert", dict(BERT, hidden_act="relu", type_vocab_size=1)),
    "bert_gelu_new": ("Bert", dict(BERT, hidden_act="gelu_new")),
    "bert_silu": ("Bert", dict(BERT, hidden_act="silu", num_attention_heads=1)),
    "bert_quick_gelu": ("Bert", dict(BERT, hidden_act="quick_gelu")),
    "bert_tanh_untied": ("Bert", dict(BERT, hidden_act="tanh", tie_word_embeddings=False)),
    "camembert": ("Camembert", ROBERTA),
    "deberta_v3": ("DebertaV2", DEBERTA),
    "deberta_v2": ("DebertaV2", dict(DEBERTA, share_att_key=False, position_biased_input=True, type_vocab_size=2, norm_rel_ebd="none", position_buckets=-1)),
    "deberta_narrow": ("DebertaV2", dict(DEBERTA, embedding_size=16, pos_att_type="c2p", hidden_act="gelu_new")),
    "deberta_own_head": ("DebertaV2", dict(DEBERTA, legacy=False, pos_att_type="p2c")),
    "distilbert": ("DistilBert", DISTILBERT),
    "distilbert_relu": ("DistilBert", dict(DISTILBERT, activation="relu")),
    "electra": ("Electra", dict(BERT, embedding_size=16)),
    "electra_wide": ("Electra", dict(BERT, embedding_size=24)),
    "modernbert": ("ModernBert", MODERNBERT),
    "modernbert_biased": ("ModernBert", dict(MODERNBERT, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, decoder_bias=False,
                                             classifier_pooling="mean", classifier_activation="silu", local_attention=4)),
    "mpnet": ("MPNet", dict(BERT, pad_token_id=1, max_position_embeddings=300)),
    "roberta": ("Roberta", ROBERTA),
    "roberta_types": ("Roberta", dict(ROBERTA, type_vocab_size=2)),
    "xlm_roberta": ("XLMRoberta", ROBERTA),
}


def has_types(config):
    return config.model_type not in ("distilbert", "modernbert", "mpnet") and config.type_vocab_size > 1


def build(name, head, settings):
    """The model, in evaluation, its attention written out."""
    config_class = getattr(transformers, f"{name}Config")
    labels = 2 if head == "ForQuestionAnswering" else 5
    config = config_class(**settings, num_labels=labels, architectures=[f"{name}{head}"], attn_implementation="eager")
    model = getattr(transformers, f"{name}{head}")(config)
    return model.eval()


def inputs(config, lengths, generator):
    """A padded batch."""
    longest = max(lengths)
    pad = config.pad_token_id
    pad = 1 if config.model_type == "mpnet" else pad
    ids = torch.randint(3, config.vocab_size, (len(lengths), longest), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, length:] = pad
        mask[row, :length] = 1
    given = {"input_ids": ids, "attention_mask": mask}
    if has_types(config):
        given["token_type_ids"] = (torch.arange(longest)[None, :] > longest // 2).long().expand(ids.shape) * mask
    return given


def answers(model, given):
    with torch.no_grad():
        outputs = model(**given)
    names = ["last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits"]
    return {name: outputs[name] for name in names if outputs.get(name) is not None}


def listed(tensor):
    return {"shape": list(tensor.shape), "values": tensor.flatten().tolist()}


def randomize(model, generator):
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        is_norm = "norm" in name.lower() and name.endswith("weight")
        parameter.data = 1 + 0.1 * values if is_norm else 0.15 * values


def make(folder):
    generator = torch.Generator().manual_seed(7)
    for family, (name, settings) in FAMILIES.items():
        for head in HEADS:
            model = build(name, head, settings)
            randomize(model, generator)
            for half in ([None, torch.float16, torch.bfloat16] if family in ("bert", "modernbert") and head == "Model" else [None]):
                case = folder / f"{family}-{head}{'' if half is None else '-' + str(half).split('.')[-1]}"
                if half is not None:
                    model = model.to(half)
                model.save_pretrained(case, max_shard_size="20KB" if family == "bert_silu" else "5GB")
                if half is not None:
                    # Not `float()`: frequencies would keep the rounding of the file's datatype.
                    model = type(model).from_pretrained(case, dtype=torch.float32, attn_implementation="eager").eval()
                longest = 290 if family == "mpnet" else 45
                batches = [inputs(model.config, lengths, generator) for lengths in ([1], [longest], [7, 20, 3])]
                cases = [{"inputs": {name: listed(value) for name, value in given.items()},
                          "outputs": {name: listed(value) for name, value in answers(model, given).items()}} for given in batches]
                (case / "cases.json").write_text(json.dumps(cases))


def check(folder):
    import onnxruntime

    worst, count = 0, 0
    for case in sorted(folder.iterdir()):
        cases = json.loads((case / "cases.json").read_text())
        for file in ["standard.onnx", "onnxruntime.onnx"]:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(case / file, options, providers=["CPUExecutionProvider"])
            for one in cases:
                array = lambda value, kind: numpy.array(value["values"], kind).reshape(value["shape"])
                given = {name: array(value, numpy.int64) for name, value in one["inputs"].items()}
                expected = {name: array(value, numpy.float32) for name, value in one["outputs"].items()}
                names = [output.name for output in session.get_outputs()]
                if "logits" in names or "start_logits" in names:
                    assert names == list(expected), (case.name, names)
                for name, values in zip(names, session.run(None, given)):
                    want = expected[name]
                    assert values.shape == want.shape, (case.name, file, name, values.shape, want.shape)
                    difference = numpy.abs(values - want).max()
                    cosine = (values * want).sum() / (numpy.linalg.norm(values) * numpy.linalg.norm(want))
                    worst, count = max(worst, difference), count + 1
                    if not (difference <= DIFFERENCE_MAX and cosine >= COSINE_MIN):
                        print(f"{case.name} {file} {name} {values.shape}: difference {difference}, cosine {cosine}")
                        check.failed = True
    print(f"ONNX Runtime {onnxruntime.__version__}: {count} answers, worst difference {worst:.2e}")
    sys.exit(getattr(check, "failed", False))


def formula(name, shape):
    """Values from -1 to 1 by FNV-1a of the name and a linear congruential generator: the same in Rust."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    values = []
    for _ in range(int(numpy.prod(shape))):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append(((state >> 40) - 2**23) / 2**23)
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


SMALL = {"vocab_size": 7, "hidden_size": 8, "dim": 8, "num_hidden_layers": 1, "n_layers": 1, "num_attention_heads": 2, "n_heads": 2,
         "intermediate_size": 6, "hidden_dim": 6, "max_position_embeddings": 12, "embedding_size": 4, "position_buckets": 4}


# The families that have golden cases; CamemBERT and XLM-R are RoBERTa under other names.
GOLDEN = ["bert", "deberta_v2", "deberta_v3", "distilbert", "electra", "modernbert", "modernbert_biased", "mpnet", "roberta"]
ACTIVATIONS = ["gelu_new", "quick_gelu", "relu", "silu", "tanh"]
# The fields of a configuration that the cases need beside the settings.
FIELDS = ["model_type", "architectures", "id2label", "layer_types", "rope_parameters", "pad_token_id", "layer_norm_eps", "tie_word_embeddings"]


def golden_case(name, head, settings):
    model = build(name, head, settings)
    prefix = "" if head == "Model" else f"{model.base_model_prefix}."
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(0.5 * formula(key.removeprefix(prefix), parameter.shape))
    given = inputs(model.config, [4, 2], torch.Generator().manual_seed(3))
    outputs = {key: {"shape": list(value.shape), "values": [float(f"{each:.7g}") for each in value.flatten().tolist()]}
               for key, value in answers(model, given).items() if key != "pooler_output"}
    return {
        "config": {key: value for key, value in model.config.to_dict().items() if key in settings or key in FIELDS},
        # What a head shares with the bare model is not repeated.
        "tensors": {key: list(value.shape) for key, value in model.named_parameters() if not prefix or not key.startswith(prefix)},
        "inputs": {key: listed(value) for key, value in given.items()},
        "outputs": outputs,
        "prefix": prefix,
    }


def golden(folder):
    for family in GOLDEN:
        name, settings = FAMILIES[family]
        settings = {key: SMALL.get(key, value) for key, value in settings.items()}
        if name == "ModernBert":
            settings.update(num_hidden_layers=2, local_attention=2)
        heads = {head: golden_case(name, head, settings) for head in HEADS}
        if family == "bert":
            heads.update({f"Model {each}": golden_case(name, "Model", dict(settings, hidden_act=each)) for each in ACTIVATIONS})
        base = heads["Model"]
        for head in list(heads)[1:]:
            heads[head]["config"] = {key: value for key, value in heads[head]["config"].items() if base["config"].get(key) != value}
            del heads[head]["inputs"]
            if head.startswith("Model"):
                heads[head]["tensors"] = {}
        text = json.dumps(heads, separators=(",", ":")).replace('},"For', '},\n"For').replace('},"Model', '},\n"Model')
        (folder / f"{family}.json").write_text(text + "\n")


if __name__ == "__main__":
    {"make": make, "check": check, "golden": golden}[sys.argv[1]](Path(sys.argv[2]))

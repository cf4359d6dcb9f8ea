"""Cases of `tokenize` and `detokenize`: strings, and what `tokenizers` makes of them.

python text.py FOLDER COUNT [--only NAME] [NAME=TOKENIZER.json ...]: COUNT strings for each tokenizer; some are trained here. A line of
FOLDER/cases has a name, the file, the parameters, the files of texts, pairs and results; texts are in the form of a BYTES tensor, a
result is the number of tokens and a checksum of all numbers of a row."""

import json
import random
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = """the of and to in is was for on are as with his they be at one have this from or had by hot but some what there we can out
other were all your when up use word how said an each she which do their time if will way about many then them would write like so
these her long make thing see him two has look more day could go come did my sound no most number who over know water than call
first people may down side been now find running unbelievable internationalization café naïve Straße ÅNGSTRÖM İstanbul ΣΊΣΥΦΟΣ
привет мир Ёлка 中文 東京 日本語 한국어 안녕하세요 שלום عليكم नमस्ते ไทย e\u0301 a\u0308\u0323 n\u0303 ﬁne Ⅷ ① ½ µ""".split()
SPECIAL = ["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>", "<mask>",
           "<0x41>", "[INST]", "##ing", "\u2581", "<bos>", "[cls]", "<|begin_of_text|>", "\u0120"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "\ufeff", "\u1680", "     ", "\v"]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤️", "🏴\U000e0067\U000e0062\U000e007f", "1️⃣", "🧑🏿‍🚀", "☺", "™️"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "“", "”", "«", "¿", "。", "、", "・", "؟", "\u037e", "\u1fef", "'s", "n't"]
CONTROLS = [chr(code) for code in range(32)] + ["\x7f", "\x80", "\x9f", "\u200d", "\u200e", "\u202e", "\ufffd", "\ufffe", "\uffff"]
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF),
          (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
          (0xE000, 0xF8FF), (0xF900, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x2FFFF), (0x30000, 0x3FFFF), (0xE0000, 0xE0FFF),
          (0xF0000, 0x10FFFF), (0, 0xFFFF), (0, 0x10FFFF)]


def character(random):
    low, high = random.choice(RANGES)
    code = random.randint(low, high)
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ud7a3"


def piece(random):
    kind = random.random()
    if kind < 0.45:
        word = random.choice(WORDS)
        case = random.random()
        return word.upper() if case < 0.1 else word.capitalize() if case < 0.3 else word
    if kind < 0.55:
        return "".join(character(random) for _ in range(random.randint(1, 6)))
    if kind < 0.62:
        return random.choice(WORDS[:40]) + chr(random.choice([0x301, 0x300, 0x308, 0x323, 0x327, 0x489, 0x5B0, 0x64B, 0x20E3, 0x302E]))
    if kind < 0.72:
        return random.choice(PUNCTUATION)
    if kind < 0.79:
        return random.choice([str(random.randint(0, 10**random.randint(1, 12))), f"{random.random():.4f}", "٣٤٥", "１２", "1,000.50"])
    if kind < 0.84:
        return random.choice(SPECIAL)
    if kind < 0.89:
        return random.choice(EMOJI)
    if kind < 0.93:
        return random.choice(CONTROLS)
    if kind < 0.935:
        return random.choice(["a", "ab", "é", "!", "中", "1", "x\u0301"]) * random.randint(20, 150)
    return "".join(random.choice(WORDS) for _ in range(random.randint(2, 4)))


def string(random):
    kind = random.random()
    if kind < 0.02:
        return ""
    if kind < 0.05:
        return random.choice(SPACES) * random.randint(1, 3)
    count = random.randint(1, 12)
    if kind < 0.3:
        text = " ".join(random.choice(WORDS[:90]) for _ in range(count))
        return text + random.choice(["", ".", "?", "!!"])
    return "".join(piece(random) + (random.choice(SPACES) if random.random() < 0.3 else " " if random.random() < 0.7 else "")
                   for _ in range(count))


def trained(folder):
    """Small tokenizers of the three kinds and their variants."""
    source = random.Random(1)
    corpus = [string(source) for _ in range(3000)] + [" ".join(WORDS)] * 20
    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = {}
    for name, lowercase, accents in [("wordpiece", True, None), ("wordpiece_cased", False, None), ("wordpiece_accents", True, False),
                                     ("wordpiece_stripped", False, True)]:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.train_from_iterator(corpus, trainers.WordPieceTrainer(
            vocab_size=2000, limit_alphabet=250, special_tokens=bert, show_progress=False))
        if lowercase:
            tokenizer.post_processor = processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        else:
            tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        made[name] = tokenizer
    plain = Tokenizer.from_str(json.dumps({**json.loads(made["wordpiece"].to_str()), "post_processor": None}))
    plain.normalizer = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False)
    made["wordpiece_plain"] = plain
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made["bytelevel"] = tokenizer
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" {2,}", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    # Each character of its corpus becomes a token.
    words = [" ".join(source.choice(WORDS) for _ in range(8)) for _ in range(3000)]
    tokenizer.train_from_iterator(words, trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made["unigram"] = tokenizer
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<unk>", "<s>", "</s>", "<pad>"] + fallback, limit_alphabet=150, show_progress=False))
    made["fallback"] = tokenizer
    for name, tokenizer in made.items():
        tokenizer.save(str(folder / f"{name}.json"))
    return made


PAD = {"wordpiece": "[PAD]", "bytelevel": "<pad>", "unigram": "<pad>", "fallback": "<pad>"}


def parameters(name):
    """Sets of parameters: those of the step, and the calls of `tokenizers` that mean the same."""
    pad = PAD.get(name.split("_")[0])
    padded = {"pad_token": pad} if pad else {"pad_id": 1}
    plain = lambda tokenizer: None
    sets = [("plain", {"padding": "off", "truncation": "off"}, plain, 1, False, True)]
    pad_id = lambda tokenizer: {"pad_id": tokenizer.token_to_id(pad) if pad else 1}
    def longest(tokenizer):
        tokenizer.enable_padding(**pad_id(tokenizer))
        tokenizer.enable_truncation(12)
    sets.append(("longest", {**padded, "max_length": 12}, longest, 16, False, True))
    def multiple(tokenizer):
        tokenizer.enable_padding(**pad_id(tokenizer), pad_to_multiple_of=8, direction="left")
        tokenizer.enable_truncation(9, direction="left")
    left = {**padded, "padding_side": "left", "truncation_side": "left", "pad_to_multiple_of": 8, "max_length": 9, "datatype": "INT32"}
    sets.append(("left", left, multiple, 4, False, True))
    def fixed(tokenizer):
        tokenizer.enable_padding(**pad_id(tokenizer), length=15)
        tokenizer.enable_truncation(15)
    sets.append(("fixed", {**padded, "padding": "max_length", "max_length": 15}, fixed, 5, True, True))
    def odd(tokenizer):
        tokenizer.enable_padding(**pad_id(tokenizer))
        tokenizer.enable_truncation(8)
    sets.append(("bare", {**padded, "max_length": 8, "add_special_tokens": False}, odd, 7, True, False))
    def pairs(tokenizer):
        tokenizer.enable_padding(**pad_id(tokenizer))
    sets.append(("pairs", {**padded, "truncation": "off"}, pairs, 3, True, True))
    def left_pairs(tokenizer):
        tokenizer.enable_padding(**pad_id(tokenizer))
        tokenizer.enable_truncation(11, direction="left")
    sets.append(("left_pairs", {**padded, "max_length": 11, "truncation_side": "left"}, left_pairs, 3, True, True))
    for strategy in ["only_first", "only_second"]:
        def only(tokenizer, strategy=strategy):
            tokenizer.enable_truncation(40, strategy=strategy)
        sets.append((strategy, {"padding": "off", "truncation": strategy, "max_length": 40}, only, 1, True, True))
    def prefixed(tokenizer):
        tokenizer.enable_padding(**pad_id(tokenizer))
    sets.append(("prefix", {**padded, "truncation": "off", "prefix": "query: "}, prefixed, 8, False, True))
    return sets


def packed(texts):
    return b"".join(struct.pack("<I", len(text)) + text for text in (text.encode() for text in texts))


def row(encoding):
    # From 1, with 0 for special tokens and padding. Without a post-processor, the library counts padding to the first text.
    place = lambda place, is_token: place + 1 if is_token and place is not None else 0
    places = [list(map(place, part, encoding.attention_mask)) for part in (encoding.sequence_ids, encoding.word_ids)]
    numbers = [encoding.ids, encoding.attention_mask, encoding.type_ids, encoding.special_tokens_mask, encoding.offsets, *places]
    data = b"".join(np.array(part, dtype=np.uint32).tobytes() for part in numbers)
    return struct.pack("<II", len(encoding.ids), zlib.crc32(data))


def results(tokenizer, texts, pairs, rows, special):
    """A row of 0xFFFFFFFF and 0 where the library refuses a request."""
    refused = struct.pack("<II", 0xFFFFFFFF, 0)
    for start in range(0, len(texts), rows):
        batch = texts[start:start + rows]
        if pairs:
            batch = list(zip(batch, pairs[start:start + rows]))
        try:
            yield from map(row, tokenizer.encode_batch(batch, add_special_tokens=special))
        except Exception:
            yield from [refused] * len(batch)


def main():
    folder, count, rest = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    only = rest[1] if rest[:1] == ["--only"] else None
    files = dict(argument.split("=", 1) for argument in rest if "=" in argument)
    source = random.Random(7)
    made = {} if only in files else trained(folder)
    for name, file in files.items():
        made[name] = Tokenizer.from_file(file)
        (folder / f"{name}.json").write_bytes(Path(file).read_bytes())
    made = {name: tokenizer for name, tokenizer in made.items() if only in (None, name)}
    cases = []
    for name, tokenizer in made.items():
        # One share of the strings for each set: the first one, without a limit, gets half of them.
        sets = parameters(name)
        text = tokenizer.to_str()
        for index, (label, given, enable, rows, has_pairs, special) in enumerate(sets):
            share = count // 2 if index == 0 else count // 2 // (len(sets) - 1)
            share -= share % rows
            texts = [string(source) for _ in range(share)]
            pairs = [string(source) for _ in range(share)] if has_pairs else None
            used = Tokenizer.from_str(text)
            used.no_padding(), used.no_truncation()
            enable(used)
            case = f"{name}-{label}"
            (folder / f"{case}.texts").write_bytes(packed(texts))
            if pairs:
                (folder / f"{case}.pairs").write_bytes(packed(pairs))
            prefix = given.get("prefix", "")
            with (folder / f"{case}.rows").open("wb") as file:
                for result in results(used, [prefix + text for text in texts], pairs, rows, special):
                    file.write(result)
            cases.append(f"{case}\t{name}.json\t{json.dumps(given)}\t{rows}\t{'pairs' if pairs else ''}")
        decoded(folder, name, tokenizer, source, count // 20)
    (folder / "cases").write_text("\n".join(cases))
    (folder / "names").write_text("\n".join(made))


def decoded(folder, name, tokenizer, source, count):
    """Ids of random tokens and of strings, and their texts with and without special tokens."""
    size = tokenizer.get_vocab_size() + 5
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding(), plain.no_truncation()
    rows = [[source.randrange(size) for _ in range(source.randint(0, 12))] for _ in range(count // 2)]
    rows += [encoding.ids for encoding in plain.encode_batch([string(source) for _ in range(count // 2)])]
    ids = b"".join(struct.pack(f"<I{len(row)}I", len(row), *row) for row in rows)
    (folder / f"{name}.ids").write_bytes(ids)
    for label, skip in [("skipped", True), ("kept", False)]:
        (folder / f"{name}.{label}").write_bytes(packed([plain.decode(row, skip_special_tokens=skip) for row in rows]))


if __name__ == "__main__":
    main()

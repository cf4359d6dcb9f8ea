"""Copies the networks of the package rapidocr into the models: python fetch.py FOLDER, with the folder of an installed or
unpacked rapidocr. The characters that the recogniser knows are in the metadata of its file."""

import pathlib
import sys

here, models = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[1]) / "models"


def fields(data):
    """The fields of a protobuf message, as numbers and bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            yield key >> 3, data[at:at + size]
            at += size
        else:
            raise SystemExit("the file is no ONNX model")


for name, kind in ("find_text", "det"), ("read_text", "rec"):
    data = next(models.glob(f"*_{kind}_*.onnx")).read_bytes()
    (here / name / "1" / "model.onnx").write_bytes(data)
# ModelProto.metadata_props, each a key and a value.
entries = (dict(fields(entry)) for number, entry in fields(data) if number == 14)
characters = {entry[1]: entry[2] for entry in entries}[b"character"]
(here / "read_text" / "1" / "characters.txt").write_bytes(characters)

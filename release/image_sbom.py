"""Adds to a list of components in CycloneDX, on standard input, what an image has beside the program.

    deuteron sbom | release/image_sbom.py COMPONENTS

A line of COMPONENTS is `deb NAME VERSION ARCHITECTURE`, a package of Debian, or `pypi NAME VERSION`; some are there twice.
"""

import json
import pathlib
import platform
import sys
import urllib.parse

# By how the names of packages begin: those of another architecture end with it (libc6-arm64-cross).
LICENCES = {
    "libc6": "LGPL-2.1-or-later",
    "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libstdc++6": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "onnxruntime": "MIT",
}


def component(line):
    kind, name, version, *architecture = line.split()
    path = f"{urllib.parse.quote(name)}@{urllib.parse.quote(version)}"
    if kind == "deb":
        system = platform.freedesktop_os_release()
        path = f"{system['ID']}/{path}?arch={architecture[0]}&distro={system['ID']}-{system.get('VERSION_ID', 'sid')}"
    licence = next((text for begin, text in LICENCES.items() if name.startswith(begin)), None)
    if licence is None:
        sys.exit(f"release/image_sbom.py: whose licence is not known here: {name}")
    return {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{path}",
        "licenses": [{"expression": licence}],
    }


def main():
    (path,) = sys.argv[1:]
    document = json.load(sys.stdin)
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    components = document.pop("components") + [component(line) for line in sorted(set(lines))]
    # In the form of `deuteron sbom`: a line for each.
    head, *lines = [json.dumps(entry, separators=(",", ":"), ensure_ascii=False) for entry in [document, *components]]
    print(head[:-1] + ',\n"components":[\n' + ",\n".join(lines) + "\n]\n}")


if __name__ == "__main__":
    main()

"""Prints the licences of all that is linked into the program: a table, then each text once, with the packages under it.

    release/licences.py x86_64-unknown-linux-gnu

Cargo says what is linked, and the sources that it fetched have the texts.
"""

import json
import pathlib
import re
import subprocess
import sys

TEXTS = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)([-._].*)?$", re.IGNORECASE)


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], check=True, capture_output=True, text=True).stdout


def linked(triple):
    """(name, version) of each package in the program but its own; macros run while it is compiled."""
    lines = cargo("tree", "--locked", "--features=stores", "--edges=normal", "--prefix=none", "--format={p}", f"--target={triple}").splitlines()
    packages = {tuple(line.split(" ")[:2]) for line in lines if line and "(proc-macro)" not in line}
    return sorted((name, version[1:]) for name, version in packages if name != "deuteron")


def main():
    (triple,) = sys.argv[1:]
    metadata = json.loads(cargo("metadata", "--locked", "--features=stores", "--format-version=1", f"--filter-platform={triple}"))
    known = {(package["name"], package["version"]): package for package in metadata["packages"]}
    texts, without = {}, []
    print("Deuteron is licensed under Apache-2.0. It contains these packages:\n")
    for key in linked(triple):
        package = known[key]
        licence = (package["license"] or "see its text").replace("/", " OR ")
        print(f"  {key[0]} {key[1]}: {licence}")
        folder = pathlib.Path(package["manifest_path"]).parent
        # One folder deeper lies the C that a crate binds to (zstd, jemalloc).
        files = sorted(path for path in [*folder.glob("*"), *folder.glob("*/*")] if TEXTS.match(path.name) and path.is_file())
        for path in files:
            text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip()
            # The same text laid out another way is the same text.
            owners = texts.setdefault(" ".join(text.split()), (text, []))[1]
            owners.append(f"{key[0]} {key[1]}")
        if not files:
            without.append(f"  {key[0]} {key[1]}: {licence}, by {', '.join(package['authors']) or 'its authors'}")
    for text, owners in sorted(texts.values(), key=lambda entry: entry[1]):
        print(f"\n{'=' * 100}\n{', '.join(sorted(set(owners)))}\n{'-' * 100}\n{text}")
    if without:
        print(f"\n{'=' * 100}\nThese come without a text of their own; their licences are above:\n")
        print("\n".join(without))


if __name__ == "__main__":
    main()

"""Writes an archive of an image anew, so that the same image is the same bytes.

    release/image_archive.py ARCHIVE

buildah names in the configuration the container in which it built, which has another name each time. What is left is what
registries and `docker load` need: the configuration, named by its hash, the layers and the manifest, without a date.
"""

import hashlib
import io
import json
import pathlib
import sys
import tarfile


def read(archive, name):
    return archive.extractfile(name).read()


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def rewrite(path):
    with tarfile.open(path) as old:
        [image] = json.loads(read(old, "manifest.json"))
        config = json.loads(read(old, image["Config"]))
        layers = [read(old, name) for name in image["Layers"]]
    config.pop("container", None)
    for part in config["config"], config.get("container_config", {}):
        part.pop("Hostname", None)
    data = json.dumps(config, separators=(",", ":")).encode()
    names = [f"{hashlib.sha256(layer).hexdigest()}.tar" for layer in layers]
    have = config["rootfs"]["diff_ids"]
    if have != [f"sha256:{name.removesuffix('.tar')}" for name in names]:
        raise SystemExit(f"{path}: its layers are not those that its configuration names: {have}")
    manifest = [{"Config": f"{hashlib.sha256(data).hexdigest()}.json", "RepoTags": image["RepoTags"], "Layers": names}]
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as new:
        add(new, manifest[0]["Config"], data)
        for name, layer in zip(names, layers):
            add(new, name, layer)
        add(new, "manifest.json", json.dumps(manifest, separators=(",", ":")).encode())
    pathlib.Path(path).write_bytes(whole.getvalue())


if __name__ == "__main__":
    rewrite(sys.argv[1])

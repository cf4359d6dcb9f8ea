#!/usr/bin/env python3
"""The YAML of deploy/kserve and deploy/helm against what Kubernetes, KServe, Knative and Prometheus expect of it.

    python tests/kubernetes/contract.py DEUTERON_BINARY

No cluster runs. The objects are held to their schemas (objects.py), helm and kubectl read them, and containers are started with
the arguments of the YAML by a stand-in for a node (node.py): with their user, read-only root, volumes and probes. Stand-ins for
KServe's storage initializer and agent, for Knative's proxy and for Prometheus then do what those do. It prints a line `ok …` for
each check, with what was counted, and exits with 1 where one failed. Needs the packages of requirements.txt, `unshare`, and
promtool (Debian's package prometheus).
"""

import fcntl
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile

import objects
from checks import failures
from play_chart import play_chart, play_guarded
from play_kserve import play_agent, play_repository, play_runtimes
from play_objects import play_objects

PARTS = {
    "objects": play_objects,
    "runtimes": play_runtimes,
    "repository": play_repository,
    "agent": play_agent,
    "chart": play_chart,
    "guarded": play_guarded,
}


def open_loopback():
    """`ip link set lo up`, in the network of this part."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sH14s", b"lo", 1, b"")  # IFF_UP
        fcntl.ioctl(one, 0x8914, request)  # SIOCSIFFLAGS


def play_part(name, binary):
    open_loopback()
    with tempfile.TemporaryDirectory(prefix="contract-", ignore_cleanup_errors=True) as folder:
        # Users of containers read in it.
        os.chmod(folder, 0o755)
        PARTS[name](binary, pathlib.Path(folder))
    return 1 if failures else 0


def main():
    if sys.argv[1] == "--part":
        return play_part(sys.argv[2], sys.argv[3])
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    is_root = os.geteuid() == 0
    # Each part has ports of its own, for a pod's are fixed; a user without root is root in a
    # namespace.
    alone = ["unshare", "--net", "--mount", *([] if is_root else ["--map-root-user"]), "--"]
    environment = {**os.environ, "CONTRACT_IS_ROOT": str(int(is_root))}
    objects.Tools()
    parts = [
        subprocess.Popen(
            [*alone, sys.executable, "-B", __file__, "--part", name, binary],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in PARTS
    ]
    status = 0
    for part in parts:
        print(part.communicate()[0], end="", flush=True)
        status |= part.returncode
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())

"""Starts a container as a node would, with nothing but Linux: `python launch.py FILE`, which node.py writes.

It is in the mount namespace of its own that `unshare` made. The container sees a root that cannot be written, its volumes, and
/proc, /sys and /dev of this machine; it has the user of its security context, no capabilities, and can get no others. If the
user of this machine is not root, the container keeps their user.
"""

import ctypes
import json
import os
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4


def called(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, flags):
    called(LIBC.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None), f"mount {source} {target}")


def bind(source, target, is_read_only):
    mount(source, target, MS_BIND | MS_REC)
    if is_read_only:
        # Flags that the mount below has may be locked for users without root.
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV)
        mount("none", target, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def group_of(user):
    """The user's group by the image, else 0: what a runtime of containers takes where there is no runAsGroup."""
    with open("/etc/passwd") as file:
        users = [line.split(":") for line in file]
    return next((int(fields[3]) for fields in users if int(fields[2]) == user), 0)


def main():
    with open(sys.argv[1]) as file:
        container = json.load(file)
    root, context = container["root"], container["security"]
    bind(root, root, False)
    for volume in container["volumes"]:
        bind(volume["source"], root + volume["target"], volume["read_only"])
    for folder in ("/proc", "/sys", "/dev"):
        mount(folder, root + folder, MS_BIND | MS_REC)
    if context.get("readOnlyRootFilesystem"):
        mount("none", root, MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chroot(root)
    os.chdir("/")
    dropped = context.get("capabilities", {}).get("drop", [])
    if dropped != ["ALL"]:
        raise ValueError(f"only ALL capabilities can be dropped here, not {dropped}")
    LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if container["is_root"]:
        user = context["runAsUser"]
        group = context.get("runAsGroup", group_of(user))
        os.setgroups([context["fsGroup"]] if "fsGroup" in context else [])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    if context.get("allowPrivilegeEscalation") is False:
        called(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    os.execve(container["command"][0], container["command"], container["environment"])


main()

"""The modules as an archive that other processes can import from.

Processes that a model starts with `multiprocessing`, other than by `fork`, begin with an empty interpreter and the `sys.path`
of this one, and import the model anew. In Triton they find the public module there, in a directory. Here they find an archive
without a name, by the descriptor of this process.
"""

import binascii
import os
import sys
from struct import Struct

# Of a zip file, all members stored as they are (APPNOTE 4.3.7, 4.3.12, 4.3.16).
LOCAL_HEAD = Struct("<4s5H3I2H")
CENTRAL_HEAD = Struct("<4s6H3I5H2I")
END = Struct("<4s4H2IH")
VERSION = 20
# The first of January 1980: zip has no zero.
DATE = 0x21


def encode(sources):
    """The bytes of an archive of these modules."""
    members, directory, offset = [], [], 0
    for name, source in sources.items():
        file, data = (name + ".py").encode(), source.encode()
        about = (VERSION, 0, 0, 0, DATE, binascii.crc32(data), len(data), len(data), len(file), 0)
        members.append(LOCAL_HEAD.pack(b"PK\3\4", *about) + file + data)
        directory.append(CENTRAL_HEAD.pack(b"PK\1\2", VERSION, *about, 0, 0, 0, 0, offset) + file)
        offset += len(members[-1])
    listed = b"".join(directory)
    count = len(members)
    return b"".join(members) + listed + END.pack(b"PK\5\6", 0, 0, count, count, len(listed), offset, 0)


# The descriptor of the archive, if there is one.
descriptor = None


def publish(sources):
    """An entry for `sys.path`, of use as long as this process lives. None if the system cannot do that."""
    global descriptor
    try:
        descriptor = os.memfd_create("python-modules")
        with open(descriptor, "wb", closefd=False) as file:
            file.write(encode(sources))
    except (AttributeError, OSError):
        return None
    return entry()


def entry():
    """The entry of this process."""
    return "/proc/" + str(os.getpid()) + "/fd/" + str(descriptor)


def publish_again(before):
    """In a forked process: its own entry in the place of this one."""
    sys.path[:] = [entry() if each == before else each for each in sys.path]

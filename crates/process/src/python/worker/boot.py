"""The program of `python3 -c` in the process of a Python model: takes the rest over the socket that is standard input.

The first message brings three descriptors and the sources of all modules. None of them is a file, so this also imports
them: a module is compiled when it is first asked for, which keeps what a model does not use out of its start.
"""

import sys

# `-c` puts the directory that the server was started in first: a file there would take the place of a module of Python.
if sys.path and sys.path[0] == "":
    del sys.path[0]

import _socket  # noqa: E402
import os  # noqa: E402

# The exit status of an interpreter that cannot run the model, for a reason that the last line of standard error says.
UNSUITABLE = 78


class SentModules:
    """Finds and loads the modules that the server sent."""

    sources = {}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.sources:
            return None
        return type(sys.__spec__)(name, cls, origin="<deuteron>/" + name + ".py")

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        origin = module.__spec__.origin
        exec(compile(cls.sources[module.__name__], origin, "exec", dont_inherit=True), module.__dict__)

    @classmethod
    def get_source(cls, name):
        return cls.sources[name]


def read(main, size):
    """Reads exactly `size` bytes: later bytes belong to another reader."""
    parts = []
    while size > 0:
        part = main.recv(size)
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_number(main, size):
    return int.from_bytes(read(main, size), "little")


def refuse(reason):
    """Ends the process: its interpreter is of no use."""
    sys.stderr.write(reason + "\n")
    sys.stderr.flush()
    os._exit(UNSUITABLE)


def boot():
    if sys.version_info < (3, 8):
        refuse("it is Python " + sys.version.split()[0])
    main_fd = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.set_blocking(main_fd, True)
    main = _socket.socket(fileno=main_fd)
    # The descriptors come with the first byte. Reading only the count leaves the rest in the socket.
    flags = _socket.MSG_CMSG_CLOEXEC
    count, ancillary, _, _ = main.recvmsg(4, _socket.CMSG_SPACE(12), flags)
    if not count:
        os._exit(0)
    files = b"".join(data for _, _, data in ancillary)
    aux_fd, request_fd, response_fd = (int.from_bytes(files[i : i + 4], sys.byteorder) for i in (0, 4, 8))
    for _ in range(int.from_bytes(count + read(main, 4 - len(count)), "little")):
        name = read(main, read_number(main, 2)).decode()
        SentModules.sources[name] = read(main, read_number(main, 4)).decode()
    main.detach()
    # First, so that no installed package of the same name is taken instead.
    sys.meta_path.insert(0, SentModules)
    sys.argv = [""]

    try:
        import deuteron_worker
    except ImportError as error:
        # Most likely numpy: nothing else is imported that does not come with Python.
        refuse(str(error))
    deuteron_worker.main(main_fd, aux_fd, request_fd, response_fd)


boot()

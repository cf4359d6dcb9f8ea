"""The template of a model: a process that has imported it and runs nothing of it. It forks the processes of its instances.

A fork copies one thread, and shares what a descriptor or a shared mapping leads to. So a template with anything of that kind
says why it cannot fork, and becomes the process of one instance instead. See docs/architecture/python.md.
"""

import _signal
import _socket
import gc
import os
import sys
import time

import deuteron_archive
import deuteron_channel as channel
import deuteron_start
import deuteron_threads
from deuteron_channel import frame, str32

# The files of an order to fork: main and aux socket, both regions, standard output and error.
FILES = 6
# Devices whose descriptors have no state.
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
# Libraries whose state on a device does not survive a fork.
DRIVERS = ("libcuda.so", "libamdhip64.so", "libhsa-runtime64.so")
# Numpy's own entropy has 128 bits of chance: a number below this one was given.
ENTROPY_MIN = 1 << 64
# Of prctl(2).
PR_SET_PDEATHSIG = 1
# Seconds that threads of libraries may take to end in their handlers of a fork, and a forked process to end.
SETTLE_TIME = 2.0
# A seed of torch below this one was set: its own has 53 bits of chance.
TORCH_SEED_MIN = 1 << 32


def run(process):
    """Imports the model and forks instances. Returns in the process of an instance, which is the caller's from here on:
    in a forked one `channel.process` is new, and this one itself becomes an instance if the server says so."""
    before = Before()
    try:
        deuteron_start.imported_class = deuteron_start.import_model(process.settings)
    except deuteron_start.Refused as error:
        return process._fail(str(error))
    except BaseException as error:
        from deuteron_worker import describe

        return process._fail(describe(error))
    before.end()
    template = Template(process, before)
    try:
        reason = template.why_not()
    except Exception as error:
        reason = "its state cannot be read: " + type(error).__name__ + ": " + str(error)
    process.main.send(frame(channel.COMPLETED, str32(reason)))
    if reason or not template.serve():
        return True
    return channel.process.run()


class Before:
    """What the process had before the import."""

    def __init__(self):
        self.descriptors = {name for name, _ in descriptors()}
        self.mappings = set(shared_mappings())
        # Functions that set the seed of global generators, by their modules; those that the import has called with one.
        self.seeds = {}
        self.seeded = set()
        self.finder = deuteron_threads.PatchingFinder({})
        for name in ("random", "numpy.random"):
            if name in sys.modules:
                self.watch_seed(sys.modules[name])
            else:
                self.finder.changes[name] = self.watch_seed
        sys.meta_path.insert(0, self.finder)

    def watch_seed(self, module):
        """Notes whether the import sets the seed: then a process of its own would have the same numbers each time."""
        self.seeds[module.__name__] = original = module.seed

        def seed(*args, **kwargs):
            if any(value is not None for value in (*args, *kwargs.values())):
                self.seeded.add(module.__name__)
            return original(*args, **kwargs)

        module.seed = seed

    def end(self):
        """The import is over."""
        for name, original in self.seeds.items():
            sys.modules[name].seed = original
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)


class Template:
    """A process that has imported its model."""

    def __init__(self, process, before):
        self.process = process
        self.before = before
        self.libc = None
        # Those of numpy that each instance seeds anew.
        self.generators = []

    def why_not(self):
        """Why this process must not fork, or nothing. Without garbage, which would be copied by the first collection."""
        gc.collect()
        reason = self._why_not_ever() or self.why_not_now()
        if not reason:
            gc.freeze()
        return reason

    def _why_not_ever(self):
        try:
            import ctypes
        except ImportError:
            return "this Python has no ctypes, which a fork needs to end with the server"
        # Not a CDLL: it would let other threads run, which a forked process does not have.
        self.libc = ctypes.PyDLL(None, use_errno=True)
        for name, what in descriptors():
            if name not in self.before.descriptors and what not in DEVICES and name != str(deuteron_archive.descriptor):
                return "its import left a descriptor open (" + what + ")"
        new = set(shared_mappings()) - self.before.mappings
        if new:
            return "its import has mapped shared memory (" + min(new) + ")"
        driver = next((name for name in DRIVERS if any(name in line for line in mappings())), None)
        if driver is not None:
            return "its import has loaded " + driver
        if any(_signal.getitimer(timer)[0] for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)):
            return "its import has set a timer"
        if repr(self.process.aux.numbers) != "count(1)":
            return "its import has called the server"
        if has_temporary_directory():
            return "its import has made a temporary directory, which would end with the first instance"
        of_python, self.generators = generators()
        if of_python:
            return "its import has made a random.Random"
        return ""

    def why_not_now(self):
        """Why this process must not fork now, or nothing."""
        count = len(sys._current_frames()) - 1
        if count:
            return "its import has started a thread" if count == 1 else "its import has started " + str(count) + " threads"
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return "its import has started a process"
        except ChildProcessError:
            pass
        if thread_count() > 1 and not self._ends_threads():
            return "a library has started " + str(thread_count() - 1) + " threads at its import"
        return ""

    def _ends_threads(self):
        """Libraries that can be forked end their threads in a handler of their own, and start them again when they are
        needed; OpenBLAS does. This forks a process that ends at once, and looks at what is left."""
        child = self.libc.fork()
        if child == 0:
            self.libc._exit(0)
        if child < 0 or not has_ended(child):
            return False
        until = time.monotonic() + SETTLE_TIME
        while thread_count() > 1 and time.monotonic() < until:
            time.sleep(0.001)
        return thread_count() == 1

    def serve(self):
        """Forks a process for each order. Returns whether this is one of them; this process itself does not return before
        another message has come."""
        socket = self.process.reader.socket
        while True:
            head = socket.recv(5, _socket.MSG_PEEK | _socket.MSG_WAITALL)
            if len(head) < 5:
                os._exit(0)
            if head[4] != channel.FORK:
                return False
            _, ancillary, _, _ = socket.recvmsg(5, _socket.CMSG_SPACE(4 * FILES), _socket.MSG_CMSG_CLOEXEC)
            files = [file for _, _, data in ancillary for file in memoryview(data).cast("i")]
            try:
                if len(files) == FILES and not self.why_not_now() and self._fork(files):
                    return True
            except OSError as error:
                print("cannot fork: " + str(error), file=sys.stderr)
            for file in files:
                # The server sees the end of the socket, and starts the process without the template.
                os.close(file)

    def _fork(self, files):
        """Returns whether this is the new process.

        The process between the two ends at once, so that the new one becomes a child of the server, which asked for that
        (PR_SET_CHILD_SUBREAPER): it lives longer than the template, and the server reads its status as that of any other.
        """
        server = os.getppid()
        handlers = [(number, _signal.getsignal(number)) for number in (_signal.SIGINT, _signal.SIGTERM)]
        # Its own handler would forget it.
        random_state = sys.modules["random"].getstate() if "random" in self.before.seeded else None
        entry = deuteron_archive.entry()
        self._flush()
        child = os.fork()
        if child:
            if not has_ended(child):
                os._exit(1)
            return False
        try:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            self._become_own(files, middle, server)
            self._become_instance(files, handlers)
            deuteron_archive.publish_again(entry)
            self._reseed(random_state)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        return True

    def _become_own(self, files, middle, server):
        """In the new process: it ends with the server, and says that it is there. The server reads its id with that."""
        os.setpgid(0, 0)
        os.dup2(files[4], 1)
        os.dup2(files[5], 2)
        while os.getppid() == middle:
            time.sleep(0.0002)
        self.libc.prctl(PR_SET_PDEATHSIG, int(_signal.SIGKILL), 0, 0, 0)
        # The server may have ended before that call.
        if os.getppid() != server:
            os._exit(0)
        main = _socket.socket(fileno=files[0])
        main.sendall(b"\1")
        main.detach()

    def _become_instance(self, files, handlers):
        """Replaces what belongs to the template, whose sockets `begin_child` has closed."""
        import deuteron_worker

        self.process.requests.maps.clear()
        self.process.memory = None
        for number, handler in handlers:
            _signal.signal(number, handler)
        for file in files[4:]:
            os.close(file)
        deuteron_worker.make_process(*files[:4])

    def _reseed(self, random_state):
        """Gives the process random numbers of its own, but where the import has set the seed."""
        if random_state is not None:
            sys.modules["random"].setstate(random_state)
        if "numpy.random" in sys.modules and "numpy.random" not in self.before.seeded:
            sys.modules["numpy.random"].seed()
        for generator in self.generators:
            generator._bit_generator.state = type(generator._bit_generator)().state
        torch = sys.modules.get("torch")
        if torch is not None and torch.default_generator.initial_seed() >= TORCH_SEED_MIN:
            torch.default_generator.seed()

    def _flush(self):
        """What was printed and not written would be written by each process."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                # The import may have put anything in their place.
                pass
        self.libc.fflush(None)


def descriptors():
    """The open descriptors, as names and what they lead to, but for the one that reads them."""
    for name in os.listdir("/proc/self/fd"):
        try:
            yield name, os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass


def mappings():
    with open("/proc/self/maps", errors="replace") as lines:
        return lines.read().splitlines()


def shared_mappings():
    """Lines of the mappings through which this process writes what others see."""
    return [line for line in mappings() if line.split(None, 2)[1][1::2] == "ws"]


def thread_count():
    return len(os.listdir("/proc/self/task"))


def has_ended(child):
    """Waits for a process that ends at once. One that does not is ended."""
    until = time.monotonic() + SETTLE_TIME
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.0002)
    os.kill(child, _signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def has_temporary_directory():
    """True if one is removed when its process ends, which each instance would do."""
    if "tempfile" not in sys.modules or "weakref" not in sys.modules:
        return False
    directory = sys.modules["tempfile"].TemporaryDirectory
    finalizers = getattr(sys.modules["weakref"].finalize, "_registry", {})
    return any(getattr(each.func, "__self__", None) is directory for each in list(finalizers.values()))


def generators():
    """The generators of random numbers beside the global ones, which draw the same in each instance: those of Python, and those
    of numpy without a seed of the model's."""
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    of_python, of_numpy = [], []
    known = [getattr(random, "_inst", None)]
    # The names of temporary files are drawn anew in each process.
    namer = getattr(sys.modules.get("tempfile"), "_RandomNameSequence", None)
    kind = () if random is None else random.Random
    stateless = () if random is None else random.SystemRandom
    numpys = () if numpy is None else (numpy.Generator, numpy.RandomState)
    for each in gc.get_objects():
        # Not `isinstance`, which asks objects that stand for others.
        cls = type(each)
        if cls is namer:
            known.append(getattr(each, "_rng", None))
        elif issubclass(cls, numpys):
            if each is not numpy.mtrand._rand and not is_seeded(each):
                of_numpy.append(each)
        elif issubclass(cls, kind) and not issubclass(cls, stateless):
            of_python.append(each)
    return [each for each in of_python if not any(each is one for one in known)], of_numpy


def is_seeded(generator):
    """True if a generator of numpy has a seed of the model's: it draws the same in each process anyway."""
    # A RandomState with a seed forgets it.
    sequence = getattr(generator._bit_generator, "_seed_seq", ENTROPY_MIN)
    entropy = getattr(sequence, "entropy", ENTROPY_MIN)
    return sequence is None or isinstance(entropy, int) and entropy < ENTROPY_MIN

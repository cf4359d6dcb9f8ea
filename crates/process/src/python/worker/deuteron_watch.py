"""Looks at the first batches of a model for what costs it much: each finding is one warning in the log.

An audit hook (PEP 578) tells what `execute` opens and connects to. Hooks cannot be removed: when the watch has ended this one
only looks whether there is one. The order of inputs and responses tells whether a batch is computed in one piece.
"""

import os
import sys
import time
from _thread import get_ident

from deuteron_request import InferenceRequest, InferenceResponse

# Batches that are watched, and of these the ones that must show the same: the first may load what later ones keep.
BATCHES = 8
REPEATS = 4
# Places that are told apart.
PLACES_MAX = 64
# A batch of several requests that takes less of the cores is not worth a hint. A busy machine does not count.
SLICED_SECONDS_MIN = 0.002
# Files of the system that are no work of the model's.
SYSTEM_FILES = ("/proc/", "/sys/", "/dev/")

LOG_WARNING = 1

SLICED_TEXT = (
    "hint: execute answered each request of a batch before it read the next one, in {repeats} batches of up to {requests} "
    "requests: they are computed one by one. If the model can compute several rows at once, concatenate the inputs, compute "
    "once, and split the outputs."
)
OPENED_TEXT = "hint: execute opens '{place}' in each batch ({repeats} of {batches}){how}. Load it in initialize."
CONNECTED_TEXT = (
    "hint: execute connects to {place} in each batch ({repeats} of {batches}){how}. Connect in initialize, and keep the "
    "connection."
)

# The watch of the thread that runs `execute`, while it does.
watched = {}


def audit(event, args):
    """The hook: events of other threads, and of all once nothing is watched, cost a look into an empty dict."""
    if watched and (event == "open" or event == "socket.connect"):
        watch = watched.pop(get_ident(), None)
        if watch is not None:
            # Without it meanwhile: what the watch does itself is no work of the model's.
            try:
                watch.handle_event(event, args)
            finally:
                watched[get_ident()] = watch


def opened_file(args):
    """The file that is read; None for one that is written, and for a descriptor. `os.open` has flags in place of a mode."""
    path, mode, flags = args
    is_written = mode is None and flags & os.O_ACCMODE or mode is not None and not set("wax+").isdisjoint(mode)
    if is_written or isinstance(path, int):
        return None
    path = os.fsdecode(path)
    return None if path.startswith(SYSTEM_FILES) else path


def address_text(address):
    """An address of a socket."""
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else os.fsdecode(address)


class Place:
    """A file or an address: the batches that it was used in."""

    __slots__ = ("text", "batches", "last", "file", "line", "how")

    def __init__(self, text, file, line, how):
        self.text = text
        self.batches = self.last = 0
        self.file, self.line, self.how = file, line, how


class ExecuteWatch:
    """Watches the first batches of a model on the main thread."""

    def __init__(self, process, is_batching):
        self.process = process
        self.directory = process.settings["model_directory"]
        self.file = process.settings["model_file"]
        self.batch = 0
        self.places = {}
        # What one batch did: the numbers of inputs that were read and of responses that were made.
        self.read = self.answered = 0
        self.is_sliced = False
        # Batches of several requests, and those that were computed one by one; 0 if it is known that none will come.
        self.several_left = BATCHES if is_batching else 0
        self.sliced = self.most = 0
        sys.addaudithook(audit)

    def run(self, execute, requests):
        """Runs a batch."""
        count = len(requests)
        looks_at_order = self.several_left > 0 and count > 1
        if watched or not (looks_at_order or self.batch < BATCHES):
            # Another thread is watched, or there is nothing to see.
            return execute(requests)
        self.batch += 1
        self.read = self.answered = 0
        self.is_sliced = looks_at_order
        thread = get_ident()
        watched[thread] = self
        began = time.process_time()
        try:
            if not looks_at_order:
                return execute(requests)
            with OrderOfWork(self):
                return execute(requests)
        finally:
            took = time.process_time() - began
            del watched[thread]
            self._handle_end(count, looks_at_order, took)

    def handle_read(self):
        """The inputs of a request are read for the first time."""
        if self.answered < self.read:
            self.is_sliced = False
        self.read += 1

    def handle_answer(self):
        """A response is made."""
        self.answered += 1

    def handle_event(self, event, args):
        """Something is opened or connected to."""
        place = opened_file(args) if event == "open" else address_text(args[1])
        if place is None or self.batch > BATCHES:
            return
        known = self.places.get((event, place))
        if known is None:
            if len(self.places) >= PLACES_MAX:
                return
            known = self.places[event, place] = Place(place, *self._caller())
        if known.last != self.batch:
            known.last = self.batch
            known.batches += 1

    def _caller(self):
        """The line of the model's own files that did it, and the function that loads a model if there is one."""
        frame, how = sys._getframe(3), ""
        while frame is not None:
            code = frame.f_code
            if code.co_name == "from_pretrained":
                how = ", by from_pretrained"
            if code.co_filename.startswith(self.directory):
                return code.co_filename, frame.f_lineno, how
            frame = frame.f_back
        return self.file, 0, how

    def _handle_end(self, count, looks_at_order, took):
        if looks_at_order:
            self.several_left -= 1
            # A batch whose inputs were not all read, or not all answered here, says nothing.
            if self.is_sliced and self.read == self.answered == count and took >= SLICED_SECONDS_MIN:
                self.sliced += 1
                self.most = max(self.most, count)
                if self.sliced == REPEATS:
                    self.several_left = 0
                    self._log(SLICED_TEXT.format(repeats=self.sliced, requests=self.most), self.file, 0)
        if self.batch == BATCHES:
            for (event, _), place in self.places.items():
                if place.batches >= REPEATS:
                    text = OPENED_TEXT if event == "open" else CONNECTED_TEXT
                    text = text.format(place=place.text, repeats=place.batches, batches=self.batch, how=place.how)
                    self._log(text, place.file, place.line)
            self.places = {}
        if self.batch >= BATCHES and not self.several_left:
            self.process.watch = None

    def _log(self, text, file, line):
        self.process.log(LOG_WARNING, text, file, line)


class OrderOfWork:
    """While it is entered the classes of requests and responses tell the watch when inputs are read, and responses made."""

    def __init__(self, watch):
        self.watch = watch
        self.thread = get_ident()
        self.open_inputs, self.init = InferenceRequest._open_inputs, InferenceResponse.__init__

    def __enter__(self):
        watch, thread, open_inputs, init = self.watch, self.thread, self.open_inputs, self.init

        def reads(request):
            if get_ident() == thread:
                watch.handle_read()
            return open_inputs(request)

        def answers(response, *given, **named):
            if get_ident() == thread:
                watch.handle_answer()
            init(response, *given, **named)

        InferenceRequest._open_inputs, InferenceResponse.__init__ = reads, answers

    def __exit__(self, *exception):
        InferenceRequest._open_inputs, InferenceResponse.__init__ = self.open_inputs, self.init

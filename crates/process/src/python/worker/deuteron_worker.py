"""The process of a Python model: one instance. Loads the model, runs its batches one after the other, ends with it.

The main thread reads the main socket, and calls `initialize`, `execute` and `finalize`. See docs/architecture/python.md.
"""

import _signal
import _socket
import _thread
import json
import os
import sys
from struct import Struct
from weakref import ref

import deuteron_channel as channel
from deuteron_channel import U64, AuxSocket, FrameReader, FrameWriter, frame, str16, str32
from deuteron_layout import RequestDecoder
from deuteron_memory import NoRoom, RequestMemory, ResponseMemory, copy_into
from deuteron_request import (
    COMPLETE_FINAL,
    NO_RESPONSE,
    NO_SPAN,
    RELEASE_RESCHEDULE,
    RESCHEDULED,
    SPAN,
    InferenceResponse,
    RequestBatch,
    TritonError,
    encode_response,
)
from deuteron_tensor import TritonModelException

EXECUTE_HEAD = Struct("<QIHQQI")
RESPONSES_HEAD = Struct("<IB8sB22sBI")
FAILED_HEAD = Struct("<IB8sB22sB")
LOG_HEAD = Struct("<BI")

# Stages of a process.
STARTING, SERVING, FINALIZING = "starting", "serving", "finalizing"
# Our own source files, but for the public module, which is Python in Triton too.
OWN_FILES = ("<deuteron>/deuteron_", "<deuteron>/c_")
# Levels of the log.
LOG_ERROR, LOG_VERBOSE = 2, 3
# Of the path of a source file, in the log.
PATH_SIZE_MAX = 4096

NO_RESPONSE_TEXT = (
    "the model gave no response: execute returned None for the request, and no response sender is left that could send one"
)


def name_process(name):
    """Names this process after its instance: `deuteron: NAME` in `ps`, NAME in `top`, which shows 15 characters."""
    try:
        with open("/proc/self/comm", "wb") as comm:
            comm.write(name.encode()[:15])
        with open("/proc/self/stat", "rb") as stat:
            # The fields arg_start and arg_end (proc_pid_stat(5)); those after the name in brackets begin with the third.
            start, end = map(int, stat.read().rpartition(b")")[2].split()[45:47])
        title = ("deuteron: " + name).encode()
        if 0 < len(title) < end - start - 1:
            # As setproctitle(3): if the last byte is not NUL, the kernel shows the text up to its first NUL.
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(title.ljust(end - start - 1, b"\0") + b".")
    except (OSError, ValueError):
        # The system does not allow it: the process keeps the name of its interpreter.
        pass


class Process:
    """This process: its sockets, its memory, its model."""

    def __init__(self, main, aux, request_fd, response_fd):
        self.reader = FrameReader(main)
        self.main = FrameWriter(main)
        self.aux = AuxSocket(aux)
        self.aux.handle_region = self.handle_region
        self.aux.handle_is_ready = self.handle_is_ready
        self.region_fds = request_fd, response_fd
        self.requests = RequestMemory(self.aux)
        self.memory = None
        self.decoder = None
        self.settings = {}
        self.name = ""
        self.is_decoupled = False
        self.is_verbose = False
        self.stage = STARTING
        self.model = None
        self.has_execute = False
        # The requests that the main thread runs `execute` with.
        self.running = ()
        # Runs several batches at once; None if they run one after the other.
        self.overlap = None
        # Looks at the first batches.
        self.watch = None

    def run(self):
        """Handles the messages of the main socket until the end of the model."""
        reader = self.reader
        while True:
            kind, start, end = reader.read()
            if kind == channel.EXECUTE:
                if self.overlap is None:
                    self.handle_execute(start, end)
                else:
                    self.overlap.handle_batch(self.take_batch(start, end))
            elif kind == channel.INIT:
                self.handle_init(json.loads(bytes(reader.view[start + 4 : end])))
                if not (self._serve_as_template() if self.settings["mode"] == "template" else self._start()):
                    return
            elif kind == channel.FINALIZE:
                self._finalize()
                return

    def handle_init(self, settings):
        """Takes what INIT says."""
        self.settings = settings
        self.name = settings["args"].get("model_instance_name", "")
        name_process(self.name if settings["mode"] != "template" else settings["args"]["model_name"] + " (template)")
        self.is_decoupled = settings["decoupled"]
        self.is_verbose = bool(settings["log_verbose"])
        self.decoder = RequestDecoder([name for name, _ in settings["inputs"]], [name for name, _ in settings["outputs"]])
        if self.memory is None:
            (request_fd, response_fd), (request_size, response_size) = self.region_fds, settings["region_sizes"]
            self.requests.add(0, request_size, request_fd)
            self.memory = ResponseMemory(self.aux, response_size, response_fd)

    def handle_region(self, which, number, size, fd):
        """Takes a new region."""
        (self.memory if which else self.requests).add(number, size, fd)

    def handle_is_ready(self, ask):
        """Asks the model, in a thread of its own: `is_ready` may itself wait for a reply of the server."""
        _thread.start_new_thread(self._answer_is_ready, (ask,))

    def log(self, level, text, file, line):
        """Writes to the log of the server."""
        if level == LOG_VERBOSE and not self.is_verbose:
            return
        try:
            file = str16(file[-PATH_SIZE_MAX:])
            self.aux.writer.send(frame(channel.LOG, LOG_HEAD.pack(level, line), file, str32(text)))
        except channel.ServerGone:
            print(text, file=sys.stderr)

    def write_span(self, copies, size):
        """Copies outputs into a new span, and returns what a message says of it."""
        if not copies:
            return NO_SPAN
        if not size:
            # All of them are in their places.
            self.memory.lend(copies)
            return NO_SPAN
        try:
            slot, region, start = self.memory.allocate(size)
        except NoRoom as error:
            raise TritonModelException(str(error)) from None
        try:
            copy_into(region, start, copies)
        except BaseException:
            self.memory.release((slot,))
            raise
        if self.memory.holders:
            self.memory.lend(copies)
        return SPAN.pack(slot, region.number, start, size)

    def failure_text(self, text):
        """The text for clients when the model fails."""
        return "Failed to process the request(s) for model '" + self.name + "', message: " + text

    def handle_execute(self, start, end):
        """Runs a batch and sends its responses."""
        taken = self.take_batch(start, end)
        self.running = taken.requests
        self.memory.begin(taken.number)
        answer = self._answer(taken.batch, taken.requests)
        self.running = ()
        self.send_answer(taken, answer)

    def take_batch(self, start, end):
        """Reads EXECUTE. The buffer of the message may be used again afterwards."""
        buffer = self.reader.buffer
        _, slot, region, offset, size, released = EXECUTE_HEAD.unpack_from(buffer, start)
        at = start + EXECUTE_HEAD.size
        if released:
            self.memory.release(Struct("<" + str(released) + "I").unpack_from(buffer, at))
            at += 4 * released
        root = weak = None
        if size:
            root = self.requests.root(region, offset, size)
            weak = ref(root)
            if len(self.requests.maps) > 1:
                self.requests.forget_before(region)
        taken = TakenBatch()
        taken.number = bytes(buffer[start : start + 8])
        taken.slot = slot
        taken.weak = weak
        # Only the batch refers to the root.
        taken.batch = batch = RequestBatch(root)
        taken.requests = self.decoder.decode(batch, buffer, at, end)
        return taken

    def send_answer(self, taken, answer):
        """Sends the responses of a batch, which no caller refers to any longer."""
        parts, span, text, states = answer
        taken.batch.is_returned = True
        taken.batch = taken.requests = None
        last = self._finish_senders(states, parts) if states else b""
        weak = taken.weak
        is_free = weak is None or weak() is None or self.requests.keep(taken.slot, weak)
        if text is None:
            body = b"".join(parts)
            head = RESPONSES_HEAD.pack(len(body) + 37, channel.RESPONSES, taken.number, is_free, span, 0, len(parts))
        else:
            body = str32(self.failure_text(text))
            head = FAILED_HEAD.pack(len(body) + 33, channel.RESPONSES, taken.number, is_free, span, 1)
        self.main.send(head + body + last)

    def _answer(self, batch, requests):
        """Runs `execute`, and encodes its result.

        What it refers to is gone when it returns: then it is looked whether the model has kept any input.
        """
        return self.encode(batch, requests, self.call_execute(requests))

    def call_execute(self, requests):
        """The result of `execute`, or a `ModelFailure`."""
        try:
            if not self.has_execute:
                return self.no_execute()
            execute, watch = self.model.execute, self.watch
            returned = execute(requests[:]) if watch is None else watch.run(execute, requests[:])
            if returned.__class__ is list:
                return returned
            if is_coroutine(returned):
                import deuteron_loop

                if not self.is_decoupled:
                    return deuteron_loop.run(returned)
                # Not waited for. Its requests are answered by their senders, or end when it fails.
                deuteron_loop.start(returned, [request.get_response_sender()._state for request in requests])
                return None
            return returned
        except BaseException as error:
            return ModelFailure(describe(error))

    def no_execute(self):
        """The failure of a model without `execute`."""
        return ModelFailure("Python model " + self.settings["model_file"] + " does not implement `execute` method.")

    def parent(self):
        """The number of the request on whose behalf the caller runs, if that is beyond doubt; else 0. The second value
        is True if it stands for all requests of its batch."""
        if self.overlap is not None:
            return self.overlap.parent()
        running = self.running
        return (running[0]._row[0] if len(running) == 1 else 0), False

    def encode(self, batch, requests, returned):
        """The encoded responses, their span, the text with which all failed, and senders that answer instead."""
        span, states = NO_SPAN, []
        try:
            if returned.__class__ is ModelFailure:
                text = returned.text
            else:
                parts, copies, size = self._encode(batch, requests, returned, states)
                if copies:
                    span = self.write_span(copies, size)
                return parts, span, None, states
        except TritonModelException as error:
            text = str(error)
        except BaseException as error:
            text = describe(error)
        for request in requests:
            if request._sender is not None:
                request._sender._state.is_closed = True
        return [], NO_SPAN, text, ()

    def _encode(self, batch, requests, returned, states):
        """The result of `execute`, encoded. `states` gets the place and state of each sender that answers instead."""
        if returned is None:
            returned = [None] * len(requests)
        elif self.is_decoupled:
            raise TritonModelException(
                "Python model '" + self.name + "' is using the decoupled mode and the execute function must return None."
            )
        elif not isinstance(returned, list):
            raise TritonModelException("Expected a list in the execute return, found type '" + str(type(returned)) + "'.")
        elif len(returned) != len(requests):
            raise TritonModelException(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:" + str(len(requests)) + ", and InferenceResponse(s) size is:"
                + str(len(returned)) + "\n"
            )
        parts = []
        copies = []
        offset = 0
        release = batch.release
        for request, response in zip(requests, returned):
            if response is None:
                parts.append(self._leave_to_sender(request, release, len(parts), states))
                continue
            if release is not None and release.get(request._row[0]) == RELEASE_RESCHEDULE:
                raise TritonModelException(
                    "Expected a None object in the execute function return list for reschduled request, found type '"
                    + str(type(response)) + "'."
                )
            if not isinstance(response, InferenceResponse):
                raise TritonModelException(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type '"
                    + str(type(response)) + "'."
                )
            if request._sender is not None:
                request._sender._state.count(True, COMPLETE_FINAL)
            part, offset = encode_response(response, request._layout.wanted, copies, offset)
            parts.append(part)
        return parts, copies, offset

    @staticmethod
    def _leave_to_sender(request, release, place, states):
        """`execute` returned None for a request."""
        state = request.get_response_sender()._state
        if release is not None and release.get(request._row[0]) == RELEASE_RESCHEDULE:
            state.is_closed = True
            return RESCHEDULED
        states.append((place, state))
        return NO_RESPONSE

    def _finish_senders(self, states, parts):
        """Finds the senders that are gone by now. Returns the frames that say so, but for requests that just failed."""
        last = []
        for place, state in states:
            # From here on its finalizer reports by itself.
            state.is_returned = True
            if state.is_dropped and not state.is_closed and state.take_drop():
                if state.sent == 0 and state.failure is None and not self.is_decoupled:
                    parts[place] = b"\2" + bytes((TritonError.INTERNAL,)) + str32(self.failure_text(NO_RESPONSE_TEXT))
                else:
                    last.append(state.dropped_frame())
        return b"".join(last)

    def _start(self):
        """Loads the model. Returns whether batches may come."""
        import deuteron_start

        try:
            if self.settings["mode"] == "complete":
                self.main.send(frame(channel.COMPLETED, str32(deuteron_start.complete(self))))
                return self._wait_for_end()
            facts = deuteron_start.load(self)
        except deuteron_start.Refused as error:
            return self._fail(str(error))
        except BaseException as error:
            return self._fail(describe(error))
        self.has_execute = facts["execute"]
        self.overlap = self._new_overlap(facts["is_async"])
        if self.overlap is None and not facts["is_async"] and not self.settings["backend_directory"]:
            from deuteron_watch import ExecuteWatch

            config = self.settings["config"]
            has_scheduler = "dynamic_batching" in config or "sequence_batching" in config
            self.watch = ExecuteWatch(self, has_scheduler and not self.is_decoupled)
        if facts["is_ready"]:
            self.aux.start_reader()
        self.stage = SERVING
        self.main.send(frame(channel.INITIALIZED, str32(json.dumps(facts))))
        return True

    def _new_overlap(self, is_async):
        """Runs several batches at once, if the server sends more than one: with a coroutine, or with a function."""
        for_functions, for_coroutines = self.settings.get("concurrency") or (1, 1)
        # A coroutine of a decoupled model is not waited for: its next batch begins at once.
        if is_async and for_coroutines > 1 and not self.is_decoupled:
            import deuteron_overlap

            return deuteron_overlap.Coroutines(self)
        if not is_async and for_functions > 1:
            import deuteron_overlap

            return deuteron_overlap.Threads(self, for_functions)
        return None

    def _serve_as_template(self):
        """Returns whether this process becomes an instance. Forked ones have ended when it returns in them."""
        import deuteron_template

        return deuteron_template.run(self)

    def _fail(self, text):
        self.main.send(frame(channel.FAILED, str32(text)))
        return self._wait_for_end()

    def _wait_for_end(self):
        """The server reads everything before it closes the socket or says FINALIZE."""
        while True:
            kind, _, _ = self.reader.read()
            if kind == channel.FINALIZE:
                self.main.send(frame(channel.FINALIZED))
                return False

    def _finalize(self):
        if self.overlap is not None:
            self.overlap.finish()
        self.stage = FINALIZING
        if "deuteron_loop" in sys.modules:
            sys.modules["deuteron_loop"].stop()
        if hasattr(self.model, "finalize"):
            try:
                self.model.finalize()
            except BaseException as error:
                self.log(LOG_ERROR, describe(error), self.settings["model_file"], 0)
        self.main.send(frame(channel.FINALIZED))
        # Objects that the model still holds end with the interpreter: their finalizers have no server to talk to.
        self.main.socket = self.aux.writer.socket = None

    def _answer_is_ready(self, ask):
        state, text = 1, ""
        try:
            if hasattr(self.model, "is_ready"):
                is_ready = self.model.is_ready()
                if is_coroutine(is_ready):
                    import deuteron_loop

                    is_ready = deuteron_loop.run(is_ready)
                if isinstance(is_ready, bool):
                    state = int(is_ready)
                else:
                    state, text = 2, "is_ready() must return a boolean value"
        except BaseException as error:
            state, text = 2, describe(error)
        self.aux.writer.send(frame(channel.READY, U64.pack(ask), bytes((state,)), str32(text)))


class TakenBatch:
    """A batch that was read: its number as in the message, the slot of its inputs, a weak reference to their root, and its
    requests until they are answered."""

    __slots__ = ("number", "slot", "weak", "batch", "requests")


class ModelFailure:
    """Why `execute` failed."""

    __slots__ = ("text",)

    def __init__(self, text):
        self.text = text


def is_coroutine(value):
    """True if a function of the model turned out to be a coroutine. Does not import asyncio for those that did not."""
    if value is None or not hasattr(value, "send") or not hasattr(value, "throw"):
        return False
    import asyncio

    return asyncio.iscoroutine(value)


# The code of the functions that threads of ours begin with: what called them is not the model's.
entries = set()


def describe(error):
    """An exception in Triton's words: type, text, and the frames from where it was raised, without our own."""
    try:
        text = str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:
        text = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
    for note in getattr(error, "__notes__", None) or ():
        text += "\n" + str(note)
    lines = [type(error).__name__ + ": " + (text or "<EMPTY MESSAGE>")]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = trace.tb_frame if trace is not None else None
    frames = []
    while place is not None and place.f_code not in entries:
        code = place.f_code
        if not code.co_filename.startswith(OWN_FILES):
            frames.append("  " + code.co_filename + "(" + str(place.f_lineno) + "): " + code.co_name)
        place = place.f_back
    if frames:
        lines.append("\n\nAt:\n" + "\n".join(frames) + "\n")
    return "".join(lines)


# Signals that the server may send to the whole group: it says by a message how the process ends.
IGNORED = (_signal.SIGINT, _signal.SIGTERM)
# Blocked signals of a thread that forks, by thread.
masks = {}


def begin_fork():
    """A signal to a child that has not forgotten our handlers would be lost: it waits until the child has."""
    masks[_thread.get_ident()] = _signal.pthread_sigmask(_signal.SIG_BLOCK, IGNORED)


def end_fork():
    """In the process that has forked."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, masks.pop(_thread.get_ident()))


def begin_child():
    """In a process that the model forked: it must not say anything to the server, nor keep the sockets open.

    Signals mean again what they mean everywhere: `multiprocessing` ends its processes by them.
    """
    for number, usual in zip(IGNORED, (_signal.default_int_handler, _signal.SIG_DFL)):
        if _signal.getsignal(number) is ignore_signal:
            _signal.signal(number, usual)
    process = channel.process
    for writer in (process.main, process.aux.writer):
        # A thread that does not exist here may have held it.
        writer.lock = _thread.RLock()
        if writer.socket is not None:
            writer.socket.close()
            writer.socket = None
    process.aux.lock = _thread.RLock()
    end_fork()


def ignore_signal(number, place):
    """Does nothing. A function, so that programs that the model starts do not inherit it."""


def main(main_fd, aux_fd, request_fd, response_fd):
    """Runs until the server ends the model. The descriptors are ours from here on."""
    for number in IGNORED:
        _signal.signal(number, ignore_signal)
    make_process(main_fd, aux_fd, request_fd, response_fd)
    os.register_at_fork(before=begin_fork, after_in_parent=end_fork, after_in_child=begin_child)
    channel.process.run()


def make_process(main_fd, aux_fd, request_fd, response_fd):
    """The state of this process, with these descriptors."""
    os.set_blocking(main_fd, True)
    os.set_blocking(aux_fd, True)
    main_socket, aux_socket = _socket.socket(fileno=main_fd), _socket.socket(fileno=aux_fd)
    channel.process = Process(main_socket, aux_socket, request_fd, response_fd)


entries.add(main.__code__)

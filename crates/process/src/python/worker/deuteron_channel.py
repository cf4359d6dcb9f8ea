"""The two sockets to the server: frames in both directions, and the calls that wait for a reply.

The main socket is read by the main thread only. The aux socket is read by whichever thread waits for a reply: the first
becomes the reader, the others sleep on a lock of their own until their reply has come, or until the reader leaves and one
of them takes its place. So a model that calls another one from `execute` needs no second thread.

Nothing here may block in a finalizer: Python runs those in the middle of anything, also of a `send` of the same thread.
What they have to say goes through `FrameWriter.send_last_word`.
"""

import _socket
import _thread
import os
import sys
from collections import deque
from itertools import count
from struct import Struct

# Kinds of frames, as in docs/architecture/python.md.
INIT, EXECUTE, FINALIZE, FORK = 1, 2, 3, 4
INITIALIZED, FAILED, RESPONSES, SEND, FINALIZED, COMPLETED, AWAITS = 1, 2, 3, 4, 5, 6, 9
RELEASE, SPACE, REGION_DROPPED, IS_CANCELLED, LOG, READY, BLS_CALL, BLS_CANCEL, BLS_READ = range(1, 10)
CONTROL, METRIC_FAMILY, METRIC, METRIC_UPDATE, METRIC_VALUE, METRIC_DROP = range(10, 16)
REGION, SPACE_REPLY, REPLY, BLS_REPLY, IS_READY = range(1, 6)

U16 = Struct("<H")
U32 = Struct("<I")
U64 = Struct("<Q")
HEAD = Struct("<IB")
REGION_BODY = Struct("<BHQ")

# Bytes that one read asks for: most frames come whole.
BUFFER_SIZE = 64 * 1024
# Bytes of a text to the server; the rest is cut off. A frame that is too large would end the process.
TEXT_SIZE_MAX = 1024 * 1024

# The state of this process, once `deuteron_worker.main` has made it.
process = None


def frame(kind, *parts):
    """A whole frame of these pieces."""
    body = b"".join(parts)
    return HEAD.pack(len(body) + 1, kind) + body


def str16(text):
    """A text behind its 16-bit length. One that is too long for it is refused."""
    data = text.encode("utf-8", "replace")
    if len(data) > 0xFFFF:
        raise ValueError("a name of " + str(len(data)) + " bytes is longer than 65535")
    return U16.pack(len(data)) + data


def str32(text):
    """A text behind its 32-bit length; the end of a very long one is cut off."""
    data = text.encode("utf-8", "replace")
    if len(data) > TEXT_SIZE_MAX:
        data = data[:TEXT_SIZE_MAX].decode("utf-8", "ignore").encode("utf-8")
    return U32.pack(len(data)) + data


def read_str32(body, at):
    """The text at this place, and where it ends."""
    (size,) = U32.unpack_from(body, at)
    end = at + 4 + size
    return bytes(body[at + 4 : end]).decode("utf-8", "replace"), end


class ServerGone(Exception):
    """This process was forked from that of the model, and has no connection to the server."""


class FrameWriter:
    """The sending half of a socket, for all threads.

    The lock may be taken again by its holder: Python runs finalizers in the middle of anything, also of a `send` of the
    same thread, and what they send is a whole frame before or after that of the `send`.
    """

    __slots__ = ("socket", "lock")

    def __init__(self, socket):
        self.socket = socket
        self.lock = _thread.RLock()

    def send(self, data):
        """Sends whole frames; waits while the server does not read."""
        with self.lock:
            if self.socket is None:
                raise ServerGone("a process that was forked from a model's process cannot talk to the server")
            try:
                self.socket.sendall(data)
            except OSError:
                os._exit(0)

    def send_last_word(self, data):
        """Sends whole frames from a finalizer: nothing, if this process was forked from that of the model."""
        if self.socket is not None:
            self.send(data)


class FrameReader:
    """The receiving half of a socket, for one thread at a time."""

    __slots__ = ("socket", "buffer", "view", "start", "end", "files")

    def __init__(self, socket, takes_files=False):
        self.socket = socket
        self.buffer = bytearray(BUFFER_SIZE)
        self.view = memoryview(self.buffer)
        self.start = self.end = 0
        self.files = deque() if takes_files else None

    def read(self):
        """Waits for a frame. Returns its kind, and where its body begins and ends in `buffer` until the next call."""
        while True:
            start = self.start
            have = self.end - start
            needed = 5
            if have >= 5:
                size, kind = HEAD.unpack_from(self.buffer, start)
                needed = 4 + size
                if have >= needed:
                    end = start + needed
                    if end == self.end:
                        self.start = self.end = 0
                    else:
                        self.start = end
                    return kind, start + 5, end
            if start + needed > len(self.buffer) or (have == 0 and len(self.buffer) > BUFFER_SIZE):
                self._make_room(needed)
            self._receive()

    def _make_room(self, needed):
        """Begins a buffer of the right size with what is there of the frame."""
        old = self.view[self.start : self.end]
        self.buffer = bytearray(max(needed, BUFFER_SIZE))
        self.view = memoryview(self.buffer)
        self.view[: len(old)] = old
        self.start, self.end = 0, len(old)

    def _receive(self):
        try:
            if self.files is None:
                size = self.socket.recv_into(self.view[self.end :])
            else:
                size = self._receive_files()
        except OSError:
            size = 0
        if size == 0:
            # The server is gone, or has closed this process's sockets: it needs nothing of this process.
            os._exit(0)
        self.end += size

    def _receive_files(self):
        room = _socket.CMSG_SPACE(4)
        size, ancillary, _, _ = self.socket.recvmsg_into([self.view[self.end :]], room, _socket.MSG_CMSG_CLOEXEC)
        for _, _, data in ancillary:
            self.files.extend(memoryview(data).cast("i"))
        return size


class Call:
    """One question to the server, and the replies that have come and were not taken."""

    __slots__ = ("replies", "lock")

    def __init__(self):
        self.replies = deque()
        self.lock = None

    def handle(self, kind, body):
        """Takes a reply off the socket. Returns whether it is the last one."""
        if kind == REPLY:
            self.replies.append(read_reply(body))
        else:
            self.replies.append(read_space_reply(body))
        return True

    def handle_delivered(self):
        """A reply was taken off the socket, by another thread."""


class AuxSocket:
    """The aux socket: calls to the server, and what the server says by itself."""

    def __init__(self, socket):
        self.writer = FrameWriter(socket)
        self.reader = FrameReader(socket, takes_files=True)
        self.numbers = count(1)
        self.calls = {}
        # Guards `calls`, `is_read` and `sleeping`.
        self.lock = _thread.RLock()
        self.is_read = False
        self.sleeping = deque()
        # The starter of the thread that reads for good: the thread that pops it starts that thread.
        self.reader_starts = [self._read_for_good]
        # `which` and number of a region, to the call that waits for it.
        self.region_calls = {}
        # Set by the owner: handle_region(which, number, size, descriptor) and handle_is_ready(ask).
        self.handle_region = None
        self.handle_is_ready = None

    def open_call(self, call):
        """Gives a call its number."""
        number = next(self.numbers)
        with self.lock:
            self.calls[number] = call
        return number

    def close_call(self, number):
        """Forgets a call that was not sent."""
        with self.lock:
            self.calls.pop(number, None)

    def ask(self, kind, *parts):
        """Sends a frame that begins with the number of a call, and waits for its reply."""
        call = Call()
        number = self.open_call(call)
        self.writer.send(frame(kind, U64.pack(number), *parts))
        return self.wait(call)

    def wait(self, call):
        """The next reply to a call. Only one thread may wait for it."""
        while not call.replies:
            lock = self._read_or_sleep(call)
            if lock is not None:
                lock.acquire()
                continue
            try:
                while not call.replies:
                    self._read_frame()
            finally:
                self._stop_reading()
        return call.replies.popleft()

    def _read_or_sleep(self, call, is_first=False):
        """Makes the thread the reader, or returns what it has to sleep on before it looks again."""
        lock = _thread.allocate_lock()
        with self.lock:
            if call.replies:
                return lock
            if not self.is_read:
                self.is_read = True
                return None
            lock.acquire()
            call.lock = lock
            if is_first:
                self.sleeping.appendleft(call)
            else:
                self.sleeping.append(call)
            return lock

    def wait_region(self, which, number, is_there):
        """Waits until a region has come."""
        call = Call()
        with self.lock:
            if is_there():
                return
            self.region_calls[which, number] = call
        self.wait(call)

    def start_reader(self):
        """Has a thread read for good, for those that cannot wait: coroutines, `is_ready`, abandoned calls. Never blocks."""
        try:
            run = self.reader_starts.pop()
        except IndexError:
            return
        _thread.start_new_thread(run, ())

    def _read_for_good(self):
        call = Call()
        while True:
            lock = self._read_or_sleep(call, is_first=True)
            if lock is None:
                break
            lock.acquire()
        try:
            while True:
                self._read_frame()
        except BaseException:
            # All threads wait for this one. The process is of no use without it.
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _stop_reading(self):
        with self.lock:
            self.is_read = False
            if self.sleeping:
                # It looks again, and reads unless another thread was faster.
                self._wake(self.sleeping[0])

    def _wake(self, call):
        """Under the lock."""
        if call.lock is not None:
            lock, call.lock = call.lock, None
            self.sleeping.remove(call)
            lock.release()

    def _read_frame(self):
        """Reads and handles one frame. Only the reader calls this."""
        reader = self.reader
        kind, start, end = reader.read()
        body = reader.view[start:end]
        if kind == REGION:
            which, number, size = REGION_BODY.unpack_from(body)
            self.handle_region(which, number, size, reader.files.popleft())
            with self.lock:
                call = self.region_calls.pop((which, number), None)
                if call is not None:
                    call.replies.append(None)
                    self._wake(call)
        elif kind == IS_READY:
            self.handle_is_ready(U64.unpack_from(body)[0])
        else:
            self._handle_reply(kind, body)

    def _handle_reply(self, kind, body):
        (number,) = U64.unpack_from(body)
        with self.lock:
            call = self.calls.get(number)
        if call is None:
            return
        is_last = call.handle(kind, body)
        with self.lock:
            if is_last:
                self.calls.pop(number, None)
            self._wake(call)
        call.handle_delivered()


def read_reply(body):
    """The value of a REPLY, or its error as a pair in a list."""
    if body[8] == 0:
        what = body[9]
        if what == 1:
            return True, bool(body[10])
        if what == 2:
            return True, Struct("<d").unpack_from(body, 10)[0]
        if what == 3:
            return True, U32.unpack_from(body, 10)[0]
        return True, None
    text, _ = read_str32(body, 10)
    return False, (body[9], text)


def read_space_reply(body):
    """The outcome and the text of a SPACE_REPLY; the slots that it brings are taken."""
    outcome, at, text = body[8], 9, ""
    if outcome == 2:
        text, at = read_str32(body, at)
    (released,) = U32.unpack_from(body, at)
    process.memory.release(Struct("<" + str(released) + "I").unpack_from(body, at + 4))
    return outcome, text

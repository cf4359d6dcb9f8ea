"""The two kinds of shared memory: request regions, which the server fills, and response regions, which this process fills.

Inputs are views of a request region. All views of one message have the same base, its *root*: an array made directly from
the mapping, since numpy makes the first array that is not made from another array the base of all views. When the root is
gone, nothing refers to the message, and the server may use its slot again.

Outputs are copied once, into a span of the newest response region. Those of `Tensor.empty` have a span of their own there,
which the model writes. It is used again when the server no longer needs it and its root is gone.
"""

import _thread
import gc
import mmap
import os
from bisect import bisect_left
from weakref import ref

import numpy as np

import deuteron_channel as channel
from deuteron_channel import U32
from deuteron_tensor import DeviceMemory, PlacedMemory

# Alignment of tensors: a cache line, and the widest vector register.
ALIGNMENT = 64
# Bytes that the protocol uses at the start of response region 0: the batch that runs, and that this program does.
PROTOCOL_SIZE = 64
# Bytes of a response region that stay in memory after a batch that needed more, as the server keeps them (`limits.rs`).
KEPT_SIZE = 16 * 1024 * 1024
# Times that a region is free again after small batches before it gives back the pages of larger ones, as there.
SMALL_USES = 64
# Bytes from which a copy is made by numpy, which lets other threads run meanwhile, but takes longer to begin.
LARGE_SIZE = 256 * 1024
# Messages that the model keeps, from which garbage is collected once: a cycle of objects may be what keeps them.
KEPT_ROOTS_MIN = 32

NO_REGION_TEXT = (
    "Failed to increase the shared memory pool size: {size} bytes of outputs do not fit. Allow more memory with "
    "--python-memory-bytes-max, or return less at once."
)


class NoRoom(Exception):
    """The server refused more memory; the text says why."""


class KeptRoot(ref):
    """Watches a root: one that outlived its batch, or that of a span for an output."""

    __slots__ = ("slot",)


class RequestMemory:
    """All request regions that messages may name."""

    def __init__(self, aux):
        self.aux = aux
        self.maps = {}
        self.kept = {}
        self.kept_limit = KEPT_ROOTS_MIN

    def add(self, number, size, fd):
        """Maps a region. The descriptor is then no longer needed."""
        self.maps[number] = mmap.mmap(fd, size)
        os.close(fd)

    def root(self, number, offset, size):
        """The memory of one message. Waits for its region if the aux socket has not brought it yet."""
        region = self.maps.get(number)
        if region is None:
            self.aux.wait_region(0, number, lambda: number in self.maps)
            region = self.maps[number]
        return np.ndarray(size, np.uint8, region, offset)

    def forget_before(self, number):
        """Nothing names older regions once a batch came in this one; their mappings go with their last array."""
        for old in [old for old in list(self.maps) if old < number]:
            del self.maps[old]

    def keep(self, slot, weak):
        """Tells the server when the root is gone. Returns whether it already is."""
        root = weak()
        if root is None:
            return True
        watch = KeptRoot(root, self._handle_gone)
        watch.slot = slot
        # Before the root may go: the watch works only while something refers to it.
        self.kept[slot] = watch
        if len(self.kept) > self.kept_limit:
            del root
            gc.collect()
            self.kept_limit = max(KEPT_ROOTS_MIN, 2 * len(self.kept))
        return False

    def release(self, slot):
        """Tells the server that nothing refers to a message."""
        self.aux.writer.send_last_word(channel.frame(channel.RELEASE, U32.pack(1), U32.pack(slot)))

    def _handle_gone(self, watch):
        self.kept.pop(watch.slot, None)
        self.release(watch.slot)


class ResponseRegion:
    """One response region: its mapping and what is free of it."""

    __slots__ = ("number", "map", "size", "free", "used", "used_end", "busy_end", "small_uses")

    def __init__(self, number, size, fd):
        self.number = number
        self.size = size
        self.map = mmap.mmap(fd, size)
        os.close(fd)
        # Begins and ends, in order; no two touch each other.
        self.free = [(PROTOCOL_SIZE if number == 0 else 0, size)]
        self.used = 0
        # The end of the highest span since pages were given back last, and since nothing was taken.
        self.used_end = 0
        self.busy_end = 0
        # The times in a row that all was free again and nothing had been beyond KEPT_SIZE.
        self.small_uses = 0

    def take(self, size):
        """The lowest place that is large enough, so that little of the region is ever touched; None without any."""
        free = self.free
        for index, (start, end) in enumerate(free):
            if end - start >= size:
                if end - start == size:
                    del free[index]
                else:
                    free[index] = (start + size, end)
                self.used += 1
                if start + size > self.busy_end:
                    self.busy_end = start + size
                return start
        return None

    def give_back(self, start, end):
        """Frees what was taken, and joins it with what is free beside it. With the last span, which
        nothing reads any longer, gives memory back that only large batches need, once none has come for a while."""
        free = self.free
        index = bisect_left(free, (start, end))
        if index < len(free) and free[index][0] == end:
            end = free.pop(index)[1]
        if index > 0 and free[index - 1][1] == start:
            index -= 1
            start = free.pop(index)[0]
        free.insert(index, (start, end))
        self.used -= 1
        if self.used:
            return
        self.used_end = max(self.used_end, self.busy_end)
        self.small_uses = self.small_uses + 1 if self.busy_end <= KEPT_SIZE else 0
        self.busy_end = 0
        if self.used_end > KEPT_SIZE and self.small_uses >= SMALL_USES:
            try:
                self.map.madvise(mmap.MADV_REMOVE, KEPT_SIZE)
                self.used_end = 0
            except OSError:
                # It stays as it is, and the next last span tries again.
                pass


class ResponseMemory:
    """The response regions: spans for outputs, each with a slot that the server frees."""

    def __init__(self, aux, size, fd):
        self.aux = aux
        self.lock = _thread.allocate_lock()
        # Of the thread that asks for room: the others may find it in what that gets.
        self.room_lock = _thread.RLock()
        self.newest = self.first = ResponseRegion(0, size, fd)
        # That this program runs: if the process ends from now on, the interpreter is not to blame.
        self.first.map[8:16] = (1).to_bytes(8, "little")
        self.slots = {}
        self.last_slot = 0
        # Of the slots that the model writes: how many need it, which are the root and each message that names it.
        self.holders = {}
        self.roots = {}
        # Slots whose root is gone. Finalizers run at any time, also in a thread that has the lock.
        self.gone = []

    def begin(self, batch):
        """Tells the server that this batch (8 bytes) has begun: from now on it fails if the process ends."""
        self.first.map[0:8] = batch

    def add(self, number, size, fd):
        """Takes a new region, from which all new spans come."""
        region = ResponseRegion(number, size, fd)
        with self.lock:
            old, self.newest = self.newest, region
            self._drop_if_unused(old)

    def allocate(self, size):
        """A span of `size` bytes: its slot, region and offset. Asks the server for more memory if there is no room."""
        size = (size + ALIGNMENT - 1) & -ALIGNMENT
        span = self._take(size)
        return span if span is not None else self._wait_for_room(size)

    def place(self, size):
        """A span for the model to write: its place, and the root of all arrays that refer to it."""
        placed = PlacedMemory()
        placed.size = size
        placed.slot, region, placed.offset = self.allocate(size)
        placed.region = region.number
        root = np.ndarray(size, np.uint8, region.map, placed.offset)
        watch = KeptRoot(root, self._handle_gone)
        watch.slot = placed.slot
        with self.lock:
            self.holders[placed.slot] = 1
            self.roots[placed.slot] = watch
        return placed, root

    def lend(self, copies):
        """A message names these outputs. Those in places of their own are the server's too, so the model may not change them."""
        with self.lock:
            for _, _, source in copies:
                if source.__class__ is PlacedMemory:
                    self.holders[source.slot] += 1
                    source.array.flags.writeable = False

    def release(self, slots):
        """The server no longer needs these slots."""
        with self.lock:
            self._free_gone()
            for slot in slots:
                self._let_go(slot)

    def _handle_gone(self, watch):
        self.gone.append(watch.slot)

    def _free_gone(self):
        while self.gone:
            slot = self.gone.pop()
            del self.roots[slot]
            self._let_go(slot)

    def _let_go(self, slot):
        """One that needed a slot no longer does. The last one frees it."""
        if slot in self.holders:
            self.holders[slot] -= 1
            if self.holders[slot]:
                return
            del self.holders[slot]
        taken = self.slots.pop(slot, None)
        if taken is not None:
            region, start, end = taken
            region.give_back(start, end)
            self._drop_if_unused(region)

    def _take(self, size):
        with self.lock:
            if self.gone:
                self._free_gone()
            region = self.newest
            start = region.take(size)
            if start is None:
                return None
            slot = self.last_slot + 1
            while slot in self.slots or slot > 0xFFFFFFFF:
                slot = slot + 1 if slot < 0xFFFFFFFF else 1
            self.last_slot = slot
            self.slots[slot] = (region, start, start + size)
            return slot, region, start

    def _wait_for_room(self, size):
        with self.room_lock:
            span = self._take(size)
            if span is None and self.holders:
                # A cycle of objects may be what keeps an output.
                gc.collect()
                span = self._take(size)
            if span is not None:
                return span
            for must_grow in (False, True):
                if must_grow or size <= self.newest.size:
                    outcome, text = self.aux.ask(
                        channel.SPACE, channel.U64.pack(size), b"\1" if must_grow else b"\0"
                    )
                    if outcome == 2:
                        raise NoRoom(text or NO_REGION_TEXT.format(size=size))
                    span = self._take(size)
                    if span is not None:
                        return span
        raise NoRoom(NO_REGION_TEXT.format(size=size))

    def _drop_if_unused(self, region):
        # Region 0 stays for the number of the batch.
        if region is not self.newest and region.used == 0 and region.number != 0:
            self.aux.writer.send_last_word(channel.frame(channel.REGION_DROPPED, channel.U16.pack(region.number)))


def copy_into(region, base, copies):
    """Copies outputs (offset, size, source) into a span of a response region that begins at `base`."""
    target = region.map
    for offset, size, source in copies:
        start = base + offset
        if size < LARGE_SIZE:
            try:
                target[start : start + size] = source
                continue
            except (BufferError, ValueError, TypeError, IndexError):
                # Not contiguous, or of a datatype that has no buffer.
                pass
        if isinstance(source, np.ndarray):
            np.copyto(np.ndarray(source.shape, source.dtype, target, start), source)
        elif isinstance(source, DeviceMemory):
            source.copy_to(target, start)
        elif source.__class__ is PlacedMemory:
            # It is in its place.
            pass
        else:
            np.ndarray(size, np.uint8, target, start)[:] = np.frombuffer(source, np.uint8)

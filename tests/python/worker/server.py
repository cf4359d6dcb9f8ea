"""The server's end of the protocol of docs/architecture/python.md, for tests of the process of a Python model.

Starts the program exactly as the server does: `python -c BOOT`, the main socket as standard input, descriptors and modules
in the first message.
"""

import array
import collections
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time

import numpy as np

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../crates/process/src/python/worker")

INIT, EXECUTE, FINALIZE, FORK = 1, 2, 3, 4
INITIALIZED, FAILED, RESPONSES, SEND, FINALIZED, COMPLETED, AWAITS = 1, 2, 3, 4, 5, 6, 9
RELEASE, SPACE, REGION_DROPPED, IS_CANCELLED, LOG, READY, BLS_CALL, BLS_CANCEL, BLS_READ = range(1, 10)
CONTROL, METRIC_FAMILY, METRIC, METRIC_UPDATE, METRIC_VALUE, METRIC_DROP = range(10, 16)
REGION, SPACE_REPLY, REPLY, BLS_REPLY, IS_READY = range(1, 6)

CODES = {
    "BOOL": 1,
    "UINT8": 2,
    "UINT16": 3,
    "UINT32": 4,
    "UINT64": 5,
    "INT8": 6,
    "INT16": 7,
    "INT32": 8,
    "INT64": 9,
    "FP16": 10,
    "FP32": 11,
    "FP64": 12,
    "BYTES": 13,
    "BF16": 14,
}
DTYPES = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
}
CODE_OF = {np.dtype(dtype): code for code, dtype in DTYPES.items()}

Tensor = collections.namedtuple("Tensor", "datatype shape data")
Response = collections.namedtuple("Response", "kind parameters outputs code text")
Responses = collections.namedtuple("Responses", "batch inputs_free span text responses")
Send = collections.namedtuple("Send", "request flags span response")
Call = collections.namedtuple("Call", "call parent decoupled model version details span outputs inputs")


def text_tensor(shape, *items):
    """A BYTES tensor."""
    return Tensor(13, tuple(shape), b"".join(struct.pack("<I", len(item)) + item for item in items))


def wire(value):
    """A tensor of an array; tensors as they are."""
    if isinstance(value, Tensor):
        return value
    return Tensor(CODE_OF[value.dtype], value.shape, value.tobytes())


def strings(data):
    """The elements of a BYTES tensor."""
    items, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        items.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return items


def details(id="", correlation=None, flags=0, timeout=0, priority=0, parameters="", trace=""):
    """The details of a request."""
    out = str32(id)
    if correlation is None:
        out += b"\0"
    elif isinstance(correlation, int):
        out += b"\1" + struct.pack("<Q", correlation)
    else:
        out += b"\2" + str32(correlation)
    return out + struct.pack("<IQQ", flags, timeout, priority) + str32(parameters) + str32(trace)


def str16(text):
    data = text.encode()
    return struct.pack("<H", len(data)) + data


def str32(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


class Reader:
    """Reads the pieces of a message, and fails where it is not as the protocol says."""

    def __init__(self, body):
        self.body, self.at = body, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.body, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def bytes(self, size):
        self.at += size
        assert self.at <= len(self.body), "a message ends too early"
        return bytes(self.body[self.at - size : self.at])

    def str16(self):
        return self.bytes(self.take("H")).decode()

    def str32(self):
        return self.bytes(self.take("I")).decode()

    def end(self):
        assert self.at == len(self.body), "a message has more than it should"


class Region:
    """A memfd and its mapping."""

    def __init__(self, size):
        self.size = size
        self.fd = os.memfd_create("region")
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)


class Server:
    """A server with one process."""

    def __init__(
        self,
        model,
        config=None,
        python=sys.executable,
        region_sizes=(1 << 20, 1 << 20),
        start=True,
        environment=(),
        **settings,
    ):
        """`model` is the file of the model. Waits for the start of the model, unless `start` is False."""
        config = config or {"name": "m", "max_batch_size": 0, "input": [], "output": []}
        self.main, main = socket.socketpair()
        self.aux, aux = socket.socketpair()
        self.request_regions = {0: Region(region_sizes[0])}
        self.response_regions = {0: Region(region_sizes[1])}
        environment = dict(os.environ, PYTHONUNBUFFERED="1", **dict(environment))
        with open(os.path.join(WORKER, "boot.py")) as boot:
            program = boot.read()
        self.process = subprocess.Popen(
            [python, "-c", program],
            stdin=main,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        main.close()
        modules = b""
        names = sorted(name for name in os.listdir(WORKER) if name.endswith(".py") and name != "boot.py")
        for name in names:
            with open(os.path.join(WORKER, name), "rb") as source:
                text = source.read()
            modules += str16(name[:-3]) + struct.pack("<I", len(text)) + text
        files = [aux.fileno(), self.request_regions[0].fd, self.response_regions[0].fd]
        self.main.sendmsg(
            [struct.pack("<I", len(names))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        )
        self.main.sendall(modules)
        aux.close()
        version = os.path.dirname(model)
        self.settings = {
            "mode": "serve",
            "args": {
                "model_config": json.dumps(config),
                "model_instance_kind": "CPU",
                "model_instance_name": "m_0_0",
                "model_instance_device_id": "0",
                "model_repository": os.path.dirname(version),
                "model_version": "1",
                "model_name": config["name"],
            },
            "model_file": model,
            "model_directory": os.path.dirname(version),
            "version_directory": version,
            "module_name": os.path.basename(version) + "." + os.path.basename(model)[:-3],
            "backend_directory": None,
            "config": config,
            "inputs": [[tensor["name"], CODES.get(tensor["data_type"], 0)] for tensor in config["input"]],
            "outputs": [[tensor["name"], CODES.get(tensor["data_type"], 0)] for tensor in config["output"]],
            "decoupled": False,
            "log_verbose": 0,
            "region_sizes": list(region_sizes),
            "server_version": "0.0.0",
        }
        self.settings.update(settings)
        self.begin()
        self.send_main(INIT, str32(json.dumps(self.settings)))
        if start:
            self.facts = json.loads(self.expect("main", INITIALIZED).str32())

    def begin(self):
        """The state of a connection before its first message."""
        self.inputs = [name for name, _ in self.settings["inputs"]]
        self.outputs = [name for name, _ in self.settings["outputs"]]
        self.received = {"main": collections.deque(), "aux": collections.deque()}
        self.buffers = {"main": bytearray(), "aux": bytearray()}
        # Answers to messages of the aux socket, by kind: called with a Reader, instead of being kept.
        self.answers = {}
        self.batch = self.request = 0
        self.free = [0]
        self.next_slot = 1
        # Request slots that were given out and not released; response slots that may be freed.
        self.slots = set()
        self.batch_slots = {}
        self.response_slots = []
        # Places of outputs that the model wrote there.
        self.placed = []

    # Sending.

    def send_main(self, kind, body=b""):
        self.main.sendall(struct.pack("<IB", len(body) + 1, kind) + body)

    def send_aux(self, kind, body=b"", fd=None):
        data = struct.pack("<IB", len(body) + 1, kind) + body
        if fd is None:
            self.aux.sendall(data)
        else:
            self.aux.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])

    def add_region(self, which, size):
        """Gives the process a new region, and returns its number."""
        regions = self.response_regions if which else self.request_regions
        number = max(regions) + 1
        regions[number] = Region(size)
        if not which:
            self.free = [0]
        self.send_aux(REGION, struct.pack("<BHQ", which, number, size), regions[number].fd)
        return number

    def place(self, tensors, region=None):
        """Writes tensors into a new span. Returns it, and their places."""
        places, size = [], 0
        for tensor in tensors:
            places.append(size)
            size += (len(tensor.data) + 63) & -64
        if size == 0:
            return struct.pack("<IHQQ", 0, 0, 0, 0), places
        number = max(self.request_regions) if region is None else region
        memory = self.request_regions[number]
        start = self.free[0]
        if start + size > memory.size:
            assert not self.slots, "the request region is full"
            start = 0
        self.free[0] = start + size
        for at, tensor in zip(places, tensors):
            memory.map[start + at : start + at + len(tensor.data)] = tensor.data
        slot = self.next_slot
        self.next_slot += 1
        self.slots.add(slot)
        return struct.pack("<IHQQ", slot, number, start, size), places

    @staticmethod
    def tensor(head, tensor, offset):
        return (
            head
            + struct.pack("<BBQQ", tensor.datatype, len(tensor.shape), offset, len(tensor.data))
            + struct.pack("<" + str(len(tensor.shape)) + "q", *tensor.shape)
        )

    def send_execute(self, *requests, region=None):
        """Sends a batch: for each request a dict of inputs, or a pair of that and its details, or with wanted outputs."""
        self.batch += 1
        requests = [request if isinstance(request, tuple) else (request,) for request in requests]
        tensors = [wire(value) for request in requests for value in request[0].values()]
        span, places = self.place(tensors, region)
        self.batch_slots[self.batch] = struct.unpack_from("<I", span)[0]
        out = struct.pack("<Q", self.batch) + span
        out += struct.pack("<I", len(self.response_slots))
        out += b"".join(struct.pack("<I", slot) for slot in self.response_slots)
        self.response_slots = []
        out += struct.pack("<I", len(requests))
        placed = iter(zip(tensors, places))
        for request in requests:
            self.request += 1
            known = request[1] if len(request) > 1 else None
            wanted = request[2] if len(request) > 2 else self.outputs
            out += struct.pack("<QB", self.request, known is not None) + (known or b"")
            out += struct.pack("<H", len(wanted)) + b"".join(
                struct.pack("<H", self.outputs.index(name)) for name in wanted
            )
            out += struct.pack("<H", len(request[0]))
            for name in request[0]:
                tensor, at = next(placed)
                out += self.tensor(struct.pack("<H", self.inputs.index(name)), tensor, at)
        self.send_main(EXECUTE, out)
        return self.batch

    def execute(self, *requests, **options):
        """Runs a batch, and returns its `Responses`."""
        self.send_execute(*requests, **options)
        return self.responses()

    def ask(self, request, details=None, wanted=None):
        """Runs one request, and returns its outputs as arrays."""
        full = (request, details) if wanted is None else (request, details, wanted)
        responses = self.execute(full)
        assert responses.text is None, responses.text
        (response,) = responses.responses
        assert response.kind == 1, response
        return {name: value for name, value in response.outputs}

    # Receiving.

    def _read(self, limit):
        ready, _, _ = select.select([self.main, self.aux], [], [], limit)
        is_open, seen = True, sum(map(len, self.received.values()))
        for side in ready:
            name = "main" if side is self.main else "aux"
            try:
                data = side.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            is_open = is_open and bool(data)
            self.buffers[name] += data
        for name, buffer in self.buffers.items():
            while len(buffer) >= 5:
                size, kind = struct.unpack_from("<IB", buffer)
                if len(buffer) < 4 + size:
                    break
                body = bytes(buffer[5 : 4 + size])
                del buffer[: 4 + size]
                if name == "aux" and kind == RELEASE:
                    reader = Reader(body)
                    for _ in range(reader.take("I")):
                        self.slots.remove(reader.take("I"))
                    reader.end()
                elif name == "aux" and kind in self.answers:
                    self.answers[kind](Reader(body))
                else:
                    self.received[name].append((kind, body))
        if not is_open and seen == sum(map(len, self.received.values())):
            raise EOFError("the process has ended: " + self.end_text())

    def expect(self, name, kind, limit=20.0):
        """The next message of a socket, which must be of this kind."""
        end = time.monotonic() + limit
        while not self.received[name]:
            if time.monotonic() > end:
                os.killpg(self.process.pid, 6)
                raise TimeoutError("no message of kind %d: %s" % (kind, self.end_text()))
            self._read(max(0.0, end - time.monotonic()))
        found, body = self.received[name].popleft()
        assert found == kind, "message %d instead of %d: %r" % (found, kind, body[:500])
        return Reader(body)

    def wait_until(self, condition, limit=20.0):
        """Reads until something is true."""
        end = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < end, "it does not happen"
            self._read(0.01)

    def settle(self, duration=0.05):
        """Takes what comes in a short time."""
        end = time.monotonic() + duration
        while time.monotonic() < end:
            self._read(max(0.0, end - time.monotonic()))

    def end_text(self):
        """The output of the process; waits for its end."""
        try:
            out, error = self.process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            return "it still runs"
        return (out + error).decode()

    def read_tensor(self, reader, span):
        slot, region, offset, size = span
        datatype, rank, at, length = reader.take("BBQQ")
        shape = struct.unpack("<" + str(rank) + "q", reader.bytes(8 * rank))
        if datatype & 0x80:
            # In a place of its own.
            slot, region = reader.take("IH")
            self.response_slots.append(slot)
            self.placed.append((slot, region, at, length))
            datatype, offset, size = datatype & 0x7F, 0, self.response_regions[region].size
        assert at % 64 == 0 and at + length <= size or length == 0, "a tensor outside of its span"
        data = self.response_regions[region].map[offset + at : offset + at + length] if length else b""
        if datatype == 13:
            items = strings(data)
            value = np.empty(len(items), object)
            value[:] = items
            return value.reshape(shape)
        if datatype == 14:
            return Tensor(14, shape, data)
        return np.frombuffer(data, DTYPES[datatype]).reshape(shape).copy()

    def read_span(self, reader):
        span = reader.take("IHQQ")
        if span[0]:
            self.response_slots.append(span[0])
        return span

    def read_response(self, reader, span):
        kind = reader.take("B")
        if kind == 2:
            return Response(kind, "", [], reader.take("B"), reader.str32())
        outputs, parameters = [], ""
        if kind in (1, 3):
            parameters = reader.str32()
            for _ in range(reader.take("H")):
                name = self.outputs[reader.take("H")]
                outputs.append((name, self.read_tensor(reader, span)))
        return Response(kind, parameters, outputs, 0, "")

    def responses(self):
        """The next RESPONSES."""
        reader = self.expect("main", RESPONSES)
        batch, inputs_free = reader.take("QB")
        span = self.read_span(reader)
        if reader.take("B"):
            result = Responses(batch, inputs_free, span, reader.str32(), [])
        else:
            found = [self.read_response(reader, span) for _ in range(reader.take("I"))]
            result = Responses(batch, inputs_free, span, None, found)
        reader.end()
        slot = self.batch_slots.pop(batch)
        if inputs_free and slot:
            self.slots.remove(slot)
        return result

    def awaits(self):
        """The batch of the next AWAITS."""
        reader = self.expect("main", AWAITS)
        batch = reader.take("Q")
        reader.end()
        return batch

    def sent(self):
        """The next SEND."""
        reader = self.expect("main", SEND)
        request, flags = reader.take("QB")
        span = self.read_span(reader)
        response = self.read_response(reader, span)
        reader.end()
        return Send(request, flags, span, response)

    def read_details(self, reader):
        known = {"id": reader.str32()}
        kind = reader.take("B")
        known["correlation"] = None if kind == 0 else reader.take("Q") if kind == 1 else reader.str32()
        known["flags"], known["timeout"], known["priority"] = reader.take("IQQ")
        known["parameters"], known["trace"] = reader.str32(), reader.str32()
        return known

    def read_call(self, reader):
        """A BLS_CALL."""
        call, parent, decoupled = reader.take("QQB")
        model, version = reader.str16(), reader.take("q")
        known = self.read_details(reader)
        span = self.read_span(reader)
        outputs = [reader.str16() for _ in range(reader.take("H"))]
        inputs = [(reader.str16(), self.read_tensor(reader, span)) for _ in range(reader.take("H"))]
        reader.end()
        return Call(call, parent, decoupled, model, version, known, span, outputs, inputs)

    def call(self, limit=20.0):
        """The next BLS_CALL."""
        return self.read_call(self.expect("aux", BLS_CALL, limit))

    def reply_call(self, call, outputs=(), is_final=True, error=None, parameters="", kind=1):
        """Answers a call with outputs, or an error (code and text), or nothing but the end (kind 0)."""
        tensors = [wire(value) for _, value in outputs]
        span, places = self.place(tensors)
        body = struct.pack("<QB", call.call, is_final) + span
        if error is not None:
            body += b"\2" + bytes([error[0]]) + str32(error[1])
        elif kind == 0:
            body += b"\0"
        else:
            body += b"\1" + str32(parameters) + struct.pack("<H", len(tensors))
            for (name, _), tensor, at in zip(outputs, tensors, places):
                body += self.tensor(str16(name), tensor, at)
        self.send_aux(BLS_REPLY, body)

    def reply(self, call, value=None, error=None):
        """Answers a question."""
        body = struct.pack("<Q", call)
        if error is not None:
            body += b"\1" + bytes([error[0]]) + str32(error[1])
        elif value is None:
            body += b"\0\0"
        elif isinstance(value, bool):
            body += b"\0\1" + bytes([value])
        elif isinstance(value, float):
            body += b"\0\2" + struct.pack("<d", value)
        else:
            body += b"\0\3" + struct.pack("<I", value)
        self.send_aux(REPLY, body)

    def reply_space(self, call, outcome, text=""):
        """Answers a question for memory; frees all response slots."""
        body = struct.pack("<QB", call, outcome) + (str32(text) if outcome == 2 else b"")
        body += struct.pack("<I", len(self.response_slots))
        body += b"".join(struct.pack("<I", slot) for slot in self.response_slots)
        self.response_slots = []
        self.send_aux(SPACE_REPLY, body)

    # The end.

    def finalize(self):
        """Ends the model; returns what it printed."""
        self.send_main(FINALIZE)
        self.expect("main", FINALIZED)
        out, error = self.process.communicate(timeout=20)
        self.close()
        return out.decode(), error.decode()

    def close(self):
        """Closes everything: the process ends by itself."""
        for side in (self.main, self.aux):
            side.close()
        for region in list(self.request_regions.values()) + list(self.response_regions.values()):
            region.map.close()
            os.close(region.fd)
        self.request_regions, self.response_regions = {}, {}
        try:
            self.process.communicate(timeout=20)
        except (subprocess.TimeoutExpired, ValueError):
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.returncode is None and self.request_regions:
            self.close()
        elif self.request_regions:
            self.close()

"""Shared memory by tritonclient and its own helpers for it, over HTTP and gRPC.

    python check.py HTTP GRPC          against a server that allows it; prints `ok NAME` for each, exits 1 otherwise
    python check.py HTTP GRPC refused  against one that does not
"""

import base64
import concurrent.futures
import os
import queue
import socket
import struct
import sys
import threading
import time

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

import ending  # noqa: F401
import numpy
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

CHECKS = []
PREFIX = f"deuteron_test_{os.getpid()}_"
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def check(function):
    CHECKS.append(function)
    return function


def equal(got, want, what=""):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def refused(call, want, code=None):
    try:
        got = call()
    except InferenceServerException as error:
        assert want in error.message(), f"got {error.message()!r}, want {want!r}"
        assert code is None or str(code) in str(error.status()), f"got {error.status()}, want {code} for {want!r}"
        return
    raise AssertionError(f"{got!r} instead of {want!r}")


class Side:
    """One protocol: its module, a client, and where it is."""

    def __init__(self, kind, address):
        self.kind, self.address = kind, address
        self.name = "HTTP" if kind is tritonclient.http else "gRPC"
        self.client = self.new()

    def new(self):
        return self.kind.InferenceServerClient(self.address)

    def code(self, http, grpc):
        return http if self.kind is tritonclient.http else grpc

    def regions(self):
        status = self.client.get_system_shared_memory_status()
        if self.kind is tritonclient.grpc:
            return sorted(status.regions)
        return [region["name"] for region in status]

    def input(self, region, size, shape, offset=0, datatype="FP32", name="INPUT0"):
        tensor = self.kind.InferInput(name, list(shape), datatype)
        tensor.set_shared_memory(region, size, offset)
        return tensor

    def plain(self, values, name="INPUT0"):
        array = numpy.array([values], numpy.float32)
        tensor = self.kind.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        return tensor

    def output(self, region=None, size=0, offset=0, name="OUTPUT0"):
        asked = self.kind.InferRequestedOutput(name)
        if region:
            asked.set_shared_memory(region, size, offset)
        return asked


class Region:
    """Memory of this process, registered while it is in use."""

    count = 0

    def __init__(self, side, size, values=None, name=None):
        Region.count += 1
        self.side, self.size = side, size
        self.name = name or f"region-{Region.count}"
        self.key = f"/{PREFIX}{Region.count}"
        self.handle = shm.create_shared_memory_region(self.name, self.key, size)
        if values is not None:
            self.set(values)

    def set(self, values, offset=0):
        shm.set_shared_memory_region(self.handle, [numpy.array(values, numpy.float32)], offset)

    def get(self, count, offset=0):
        return shm.get_contents_as_numpy(self.handle, numpy.float32, [count], offset).tolist()

    def register(self):
        self.side.client.register_system_shared_memory(self.name, self.key, self.size)

    def truncate(self, size):
        os.truncate("/dev/shm" + self.key, size)

    def __enter__(self):
        self.register()
        return self

    def __exit__(self, *_):
        self.side.client.unregister_system_shared_memory(self.name)
        shm.destroy_shared_memory_region(self.handle)


@check
def tensors_come_from_shared_memory_and_go_there(side):
    with Region(side, 64, [1, 2, 3, 4]) as source, Region(side, 64) as target:
        inputs = [side.input(source.name, 16, (1, 4))]
        answer = side.client.infer("identity", inputs)
        equal(answer.as_numpy("OUTPUT0").tolist(), [[1, 2, 3, 4]])
        answer = side.client.infer("identity", inputs, outputs=[side.output(target.name, 16, 32)])
        equal(target.get(4, 32), [1, 2, 3, 4])
        equal(target.get(8), [0] * 8, "nothing else is touched")
        told = answer.get_output("OUTPUT0")
        told = [field.name for field, _ in told.ListFields()] if side.name == "gRPC" else told
        equal(sorted(told), ["datatype", "name", "shape"], "no data and no parameters")
        # From an offset, in two rows, and in a larger room than needed.
        source.set([5, 6, 7, 8], 16)
        side.client.infer("identity", [side.input(source.name, 32, (2, 4))], outputs=[side.output(target.name, 64)])
        equal(target.get(8), [1, 2, 3, 4, 5, 6, 7, 8])
        side.client.infer("identity", [side.input(source.name, 16, (1, 4), 16)], outputs=[side.output(target.name, 16)])
        equal(target.get(4), [5, 6, 7, 8])
        # From the message into shared memory.
        side.client.infer("identity", [side.plain([9, 9, 9, 9])], outputs=[side.output(target.name, 16)])
        equal(target.get(4), [9, 9, 9, 9])


@check
def tensors_in_memory_and_in_the_message_share_a_request(side):
    with Region(side, 16, [1, 2, 3, 4]) as source, Region(side, 16) as target:
        inputs = [side.input(source.name, 16, (1, 4)), side.plain([5, 6, 7, 8], "INPUT1")]
        outputs = [side.output(), side.output(target.name, 16, name="OUTPUT1")]
        answer = side.client.infer("two", inputs, outputs=outputs)
        equal(answer.as_numpy("OUTPUT0").tolist(), [[1, 2, 3, 4]])
        equal(target.get(4), [5, 6, 7, 8])
        # Raw contents are those of the inputs that have no region, whatever their place.
        answer = side.client.infer("two", list(reversed(inputs)), outputs=[side.output(), side.output(name="OUTPUT1")])
        equal([answer.as_numpy(f"OUTPUT{at}").tolist() for at in (0, 1)], [[[1, 2, 3, 4]], [[5, 6, 7, 8]]])


@check
def ensembles_and_kept_answers_have_it_too(side):
    with Region(side, 32, [1, 2, 3, 4]) as source, Region(side, 16) as target:
        ask = lambda model: side.client.infer(
            model, [side.input(source.name, 16, (1, 4))], outputs=[side.output(target.name, 16)]
        )
        ask("ensemble")
        equal(target.get(4), [1, 2, 3, 4])
        for values in ([5, 6, 7, 8], [5, 6, 7, 8], [9, 9, 9, 9]):
            source.set(values)
            target.set([0] * 4)
            ask("cached")
            equal(target.get(4), values, "what is in the memory counts, not where it lies")


@check
def strings_lie_there_in_their_own_format(side):
    words = numpy.array([["one", "", "drei"]], dtype=numpy.object_)
    size = len(serialize_byte_tensor(words).item())
    with Region(side, 64) as source, Region(side, 64) as target:
        shm.set_shared_memory_region(source.handle, [serialize_byte_tensor(words)])
        ask = lambda size, shape=(1, 3): side.client.infer(
            "names",
            [side.input(source.name, size, shape, datatype="BYTES")],
            outputs=[side.output(target.name, 64)],
        )
        ask(size)
        got = shm.get_contents_as_numpy(target.handle, numpy.object_, [1, 3])
        equal([word.decode() for word in got[0]], ["one", "", "drei"])
        refused(lambda: ask(size - 1), "incomplete string data for inference input 'INPUT0'")
        refused(lambda: ask(size, (1, 4)), "expected 4 string elements for inference input 'INPUT0' for model 'names', got 3")
        refused(lambda: ask(size, (1, 2)), "unexpected number of string elements 3")


@check
def requests_with_and_without_shared_memory_share_a_batch(side):
    clients = [side.new() for _ in range(4)]
    with Region(side, 64) as source, Region(side, 64) as target, concurrent.futures.ThreadPoolExecutor(4) as pool:
        for at in range(4):
            source.set([at] * 4, 16 * at)

        def ask(at):
            tensor = side.input(source.name, 16, (1, 4), 16 * at) if at % 2 else side.plain([at] * 4)
            output = side.output(target.name, 16, 16 * at) if at < 2 else side.output()
            answer = clients[at].infer("batched", [tensor], outputs=[output])
            return target.get(4, 16 * at) if at < 2 else answer.as_numpy("OUTPUT0")[0].tolist()

        equal(list(pool.map(ask, range(4))), [[at] * 4 for at in range(4)])
    statistics = side.client.get_inference_statistics("batched")
    if side.name == "gRPC":
        sizes = [batch.batch_size for batch in statistics.model_stats[0].batch_stats]
    else:
        sizes = [batch["batch_size"] for batch in statistics["model_stats"][0]["batch_stats"]]
    equal(sizes, [4], "all four ran together")


@check
def what_does_not_fit_is_refused_and_nothing_is_written(side):
    with Region(side, 64, [1, 2, 3, 4]) as source, Region(side, 64) as target:
        good = lambda: [side.input(source.name, 16, (1, 4))]
        ask = lambda inputs, *outputs: side.client.infer("identity", inputs, outputs=list(outputs) or None)
        bad, lost = side.code(400, "INVALID_ARGUMENT"), side.code(404, "NOT_FOUND")
        refused(
            lambda: ask(good(), side.output(target.name, 15)),
            "shared memory size specified with the request for output 'OUTPUT0' (15 bytes) should be at least 16 bytes to "
            "hold the results",
            side.code(500, "INTERNAL"),
        )
        equal(target.get(4), [0, 0, 0, 0])
        refused(lambda: ask([side.input("nope", 16, (1, 4))]), "Unable to find shared memory region: 'nope'", lost)
        refused(lambda: ask(good(), side.output("nope", 16)), "Unable to find shared memory region: 'nope'", lost)
        refused(lambda: ask([side.input(source.name, 16, (1, 4), 64)]), f"Invalid offset for shared memory region: '{source.name}'", bad)
        refused(lambda: ask(good(), side.output(target.name, 16, 64)), f"Invalid offset for shared memory region: '{target.name}'", bad)
        end = "Invalid offset + byte size for shared memory region: "
        refused(lambda: ask([side.input(source.name, 16, (1, 4), 49)]), f"{end}'{source.name}'", bad)
        refused(lambda: ask(good(), side.output(target.name, 65)), f"{end}'{target.name}'", bad)
        refused(
            lambda: ask([side.input(source.name, 12, (1, 4))]),
            "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 12",
            bad,
        )
        if side.name == "HTTP":
            size = 2**64 - 8
            refused(
                lambda: ask([side.input(source.name, size, (1, 4), 16)]),
                f"Integer overflow detected: byte_size ({size}) + offset (16) exceeds maximum value ({2**64 - 1}) for region "
                f"'{source.name}'",
                bad,
            )


@check
def two_outputs_are_written_or_neither(side):
    with Region(side, 64) as target:
        inputs = [side.plain([1, 2, 3, 4]), side.plain([5, 6, 7, 8], "INPUT1")]
        outputs = [side.output(target.name, 16), side.output(target.name, 8, 32, name="OUTPUT1")]
        refused(lambda: side.client.infer("two", inputs, outputs=outputs), "output 'OUTPUT1' (8 bytes)")
        equal(target.get(16), [0] * 16)


@check
def regions_are_registered_once_and_what_cannot_be_is_told(side):
    client = side.client
    bad, exists, failed = side.code(400, "INVALID_ARGUMENT"), side.code(400, "ALREADY_EXISTS"), side.code(500, "INTERNAL")
    with Region(side, 64) as region:
        equal(side.regions(), [region.name])
        refused(region.register, f"shared memory region '{region.name}' already in manager", exists)
        register = lambda key, size=64, offset=0: client.register_system_shared_memory("r", key, size, offset)
        refused(lambda: register(region.key, 65), "failed to register shared memory region 'r': invalid args", bad)
        refused(lambda: register(region.key, 64, 1), "failed to register shared memory region 'r': invalid args", bad)
        refused(lambda: register(region.key, 0), "failed to register shared memory region 'r': invalid args", bad)
        refused(lambda: register(region.key, 2**64 - 1, 2), "failed to register shared memory region 'r': invalid args", bad)
        refused(lambda: register("/nope"), "Unable to open shared memory region: '/nope'", failed)
        for key in ["", "/", "//a", "/a/b", "..", "/..", ".", "/../etc/passwd", "a\0b"]:
            refused(lambda: register(key), f"cannot register shared memory region 'r' - invalid shm key '{key}'", bad)
        for slash in ["", "/"]:
            key = slash + "triton_python_backend_shm_region_1"
            refused(
                lambda: register(key),
                f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
                "'triton_python_backend_shm_region_'",
                bad,
            )
        equal(side.regions(), [region.name], "nothing is left of what was refused")
        # A second name for the same memory, from an offset on.
        client.register_system_shared_memory("r", region.key, 32, 16)
        region.set([7, 8], 16)
        answer = client.infer("identity", [side.input("r", 8, (1, 2))])
        equal(answer.as_numpy("OUTPUT0").tolist(), [[7, 8]])
        client.unregister_system_shared_memory("r")
        client.unregister_system_shared_memory("nobody")
        refused(lambda: client.get_system_shared_memory_status("r"), "Unable to find system shared memory region: 'r'")
        refused(
            lambda: client.get_cuda_shared_memory_status(region.name),
            f"The region named '{region.name}' is registered as system shared memory, not CUDA shared memory",
        )
    equal(side.regions(), [])


@check
def what_is_no_memory_is_not_opened(side):
    register = lambda name: side.client.register_system_shared_memory("r", name, 1)
    link, pipe, folder = (f"{PREFIX}{kind}" for kind in ("link", "pipe", "folder"))
    os.symlink("/etc/passwd", f"/dev/shm/{link}")
    os.mkfifo(f"/dev/shm/{pipe}")
    os.mkdir(f"/dev/shm/{folder}")
    try:
        for name in (link, pipe, folder):
            refused(lambda: register(name), f"Unable to open shared memory region: '{name}'")
    finally:
        os.unlink(f"/dev/shm/{link}")
        os.unlink(f"/dev/shm/{pipe}")
        os.rmdir(f"/dev/shm/{folder}")


@check
def a_file_that_shrinks_costs_a_request_and_not_the_server(side):
    page = 4096
    with Region(side, 2 * page, [1, 2, 3, 4]) as source, Region(side, 2 * page) as target:
        last = lambda: [side.input(source.name, 16, (1, 4), 2 * page - 16)]
        out = lambda: [side.output(target.name, 16, 2 * page - 16)]
        side.client.infer("identity", last(), outputs=out())
        source.truncate(page)
        gone = f"shared memory region '{source.name}' is smaller than when it was registered"
        refused(lambda: side.client.infer("identity", last()), gone, side.code(400, "INVALID_ARGUMENT"))
        equal(side.client.infer("identity", [side.input(source.name, 16, (1, 4))]).as_numpy("OUTPUT0").tolist(), [[1, 2, 3, 4]])
        target.truncate(page)
        gone = f"shared memory region '{target.name}' is smaller than when it was registered"
        refused(lambda: side.client.infer("identity", [side.plain([1, 2, 3, 4])], outputs=out()), gone)
        equal(os.stat("/dev/shm" + target.key).st_size, page, "the server does not make it larger")
        # While the request waits for its model.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            target.truncate(2 * page)
            late = pool.submit(side.new().infer, "slow", [side.plain([1, 2, 3, 4])], outputs=out())
            time.sleep(0.1)
            target.truncate(0)
            refused(late.result, gone)
        assert side.client.is_server_live()
        # The mapping of this process can be taken apart only at its former size.
        source.truncate(2 * page), target.truncate(2 * page)


@check
def what_was_read_is_what_is_used(side):
    with Region(side, 16, [1, 2, 3, 4]) as source, concurrent.futures.ThreadPoolExecutor(1) as pool:
        late = pool.submit(side.new().infer, "slow", [side.input(source.name, 16, (1, 4))])
        time.sleep(0.1)
        source.set([9, 9, 9, 9])
        equal(late.result().as_numpy("OUTPUT0").tolist(), [[1, 2, 3, 4]])


@check
def a_region_in_use_leaves_when_its_last_request_has_ended(side):
    source, target = Region(side, 16, [1, 2, 3, 4]), Region(side, 16)
    with source, target, concurrent.futures.ThreadPoolExecutor(1) as pool:
        inputs, outputs = [side.input(source.name, 16, (1, 4))], [side.output(target.name, 16)]
        late = pool.submit(side.new().infer, "slow", inputs, outputs=outputs)
        time.sleep(0.1)
        side.client.unregister_system_shared_memory()
        equal(side.regions(), sorted([source.name, target.name]), "both are still used")
        answer = side.client.infer("identity", inputs)
        equal(answer.as_numpy("OUTPUT0").tolist(), [[1, 2, 3, 4]], "others find it meanwhile")
        refused(source.register, f"shared memory region '{source.name}' already in manager")
        late.result()
        equal(target.get(4), [1, 2, 3, 4])
        equal(side.regions(), [])
        refused(lambda: side.client.infer("identity", inputs), f"Unable to find shared memory region: '{source.name}'")
        source.register()
        equal(side.client.infer("identity", inputs).as_numpy("OUTPUT0").tolist(), [[1, 2, 3, 4]])


@check
def a_client_that_leaves_gives_its_regions_back(side):
    with Region(side, 16, [1, 2, 3, 4]) as source, Region(side, 16) as target:
        if side.name == "gRPC":
            inputs, outputs = [side.input(source.name, 16, (1, 4))], [side.output(target.name, 16)]
            refused(lambda: side.client.infer("slow", inputs, outputs=outputs, client_timeout=0.1), "Deadline Exceeded")
        else:
            host, port = side.address.split(":")
            place = lambda region: f'"parameters":{{"shared_memory_region":"{region}","shared_memory_byte_size":16}}'
            body = (
                f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,4],{place(source.name)}}}],'
                f'"outputs":[{{"name":"OUTPUT0",{place(target.name)}}}]}}'
            )
            with socket.create_connection((host, int(port))) as link:
                head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                link.sendall((head + body).encode())
                time.sleep(0.1)
                # A reset, rather than an end of sending.
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.client.unregister_system_shared_memory()
        deadline = time.monotonic() + 10
        while side.regions() and time.monotonic() < deadline:
            time.sleep(0.01)
        equal(side.regions(), [])
        equal(target.get(4), [0, 0, 0, 0], "nobody waits for it, and nothing is written")


@check
def what_is_registered_is_there_on_every_shard_at_once(side):
    clients = [side.new() for _ in range(8)]
    for turn in range(20):
        with Region(side, 16, [turn] * 4) as source:
            for client in clients:
                got = client.infer("identity", [side.input(source.name, 16, (1, 4))]).as_numpy("OUTPUT0")
                equal(got.tolist(), [[turn] * 4])
        for client in clients:
            refused(lambda: client.infer("identity", [side.input(source.name, 16, (1, 4))]), "Unable to find")


@check
def the_number_of_regions_and_the_bytes_of_a_request_are_bounded(side):
    with Region(side, 1 << 20) as region:
        for at in range(255):
            side.client.register_system_shared_memory(f"more-{at}", region.key, 16)
        refused(
            lambda: side.client.register_system_shared_memory("one-more", region.key, 16),
            "256 shared memory regions are registered, which is the maximum",
            side.code(503, "UNAVAILABLE"),
        )
        count = 65536 // 4
        side.client.infer("identity", [side.input(region.name, 4 * count, (1, count))], outputs=[side.output(region.name, 1 << 20)])
        refused(
            lambda: side.client.infer("identity", [side.input(region.name, 4 * count + 4, (1, count + 1))]),
            "the inputs of this request in shared memory are 65540 bytes, more than the maximum of 65536 bytes. Use "
            "--client-shm-bytes-max to increase the limit.",
            side.code(413, "RESOURCE_EXHAUSTED"),
        )
        side.client.unregister_system_shared_memory()
    equal(side.regions(), [])


@check
def requests_of_a_stream_have_it_too(side):
    if side.name == "HTTP":
        return
    answers = queue.Queue()
    with Region(side, 64) as source, Region(side, 64) as target:
        for at in range(4):
            source.set([at] * 4, 16 * at)
        client = side.new()
        client.start_stream(callback=lambda result, error: answers.put(error or result))
        for at in range(4):
            outputs = [side.output(target.name, 16, 16 * at)]
            client.async_stream_infer("batched", [side.input(source.name, 16, (1, 4), 16 * at)], outputs=outputs, request_id=str(at))
        client.async_stream_infer("batched", [side.input("nope", 16, (1, 4))])
        got = [answers.get(timeout=30) for _ in range(5)]
        client.stop_stream()
        equal([answer.get_response().id for answer in got[:4]], ["0", "1", "2", "3"])
        assert "Unable to find shared memory region: 'nope'" in got[4].message(), got[4]
        equal(target.get(16), [at for at in range(4) for _ in range(4)])
        # Of a decoupled model, each response takes the place of the one before.
        client = side.new()
        client.start_stream(callback=lambda result, error: answers.put(error or result))
        values = numpy.array([4, 5, 6], numpy.int32)
        inputs = [side.kind.InferInput("IN", [3], "INT32"), side.kind.InferInput("DELAY", [3], "UINT32"), side.kind.InferInput("WAIT", [1], "UINT32")]
        inputs[0].set_data_from_numpy(values)
        inputs[1].set_data_from_numpy(numpy.zeros(3, numpy.uint32))
        inputs[2].set_data_from_numpy(numpy.zeros(1, numpy.uint32))
        client.async_stream_infer("repeat", inputs, outputs=[side.output(target.name, 4, name="OUT"), side.output(name="IDX")])
        got = [answers.get(timeout=30) for _ in range(3)]
        client.stop_stream()
        equal([answer.as_numpy("IDX").tolist() for answer in got], [[0], [1], [2]])
        equal(shm.get_contents_as_numpy(target.handle, numpy.int32, [1]).tolist(), [6])


@check
def memory_of_a_gpu_is_refused_where_there_is_none(side):
    status = side.client.get_cuda_shared_memory_status()
    equal(len(status.regions if side.name == "gRPC" else status), 0)
    # The client's module for it wants a GPU: a handle as it would send one.
    handle = base64.b64encode(bytes(64))
    refused(
        lambda: side.client.register_cuda_shared_memory("g", handle, 0, 64),
        "failed to register CUDA shared memory region: 'g', GPUs not supported",
        side.code(400, "INVALID_ARGUMENT"),
    )
    refused(
        lambda: side.client.register_cuda_shared_memory("g", base64.b64encode(bytes(63)), 0, 64),
        "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
    )
    side.client.unregister_cuda_shared_memory("g")
    side.client.unregister_cuda_shared_memory()


@check
def the_metadata_lists_the_extensions(side):
    metadata = side.client.get_server_metadata()
    names = list(metadata.extensions) if side.name == "gRPC" else metadata["extensions"]
    at = names.index("model_configuration")
    equal(names[at : at + 4], ["model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data"])


def disabled(side):
    """Against a server that does not allow it."""
    code = side.code(501, "UNIMPLEMENTED")
    client = side.client
    for call in [
        lambda: client.register_system_shared_memory("a", "/a", 1),
        lambda: client.unregister_system_shared_memory(),
        lambda: client.unregister_cuda_shared_memory("a"),
        lambda: client.infer("identity", [side.input("a", 16, (1, 4))]),
        lambda: client.infer("identity", [side.plain([1, 2])], outputs=[side.output("a", 16)]),
    ]:
        refused(call, DISABLED, code)
    for status in [client.get_system_shared_memory_status(), client.get_cuda_shared_memory_status()]:
        equal(len(status.regions if side.name == "gRPC" else status), 0)
    metadata = client.get_server_metadata()
    names = list(metadata.extensions) if side.name == "gRPC" else metadata["extensions"]
    assert not any("shared_memory" in name for name in names), names
    equal(client.infer("identity", [side.plain([1, 2])]).as_numpy("OUTPUT0").tolist(), [[1, 2]])


def main():
    sides = [Side(tritonclient.http, sys.argv[1]), Side(tritonclient.grpc, sys.argv[2])]
    checks = [disabled] if sys.argv[3:] == ["refused"] else CHECKS
    only = sys.argv[4:] and sys.argv[4]
    failed = 0
    for side in sides:
        for function in checks:
            if only and only not in function.__name__:
                continue
            name = f"{function.__name__} ({side.name})"
            try:
                function(side)
                print(f"ok {name}", flush=True)
            except Exception as error:
                failed += 1
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    for name in os.listdir("/dev/shm"):
        if name.startswith(PREFIX):
            os.unlink(f"/dev/shm/{name}")
    return failed


if __name__ == "__main__":
    threading.Timer(300, lambda: os._exit(2)).start()
    failed = main()
    sys.stdout.flush()
    # Nothing that hangs may keep this process.
    os._exit(failed > 0)

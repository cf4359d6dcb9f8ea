#!/usr/bin/env python3
"""The balancers of docs/guide/balancers.md, under load, while replicas end and come back.

    python tests/balancers/balancers.py [--drains=N] DEUTERON_BINARY [haproxy] [envoy]

It plays the files of deploy/ as they are shipped; what it changes in them is in `HAProxy` and `Envoy` below. Three replicas
serve behind them. Each, or the first N, is drained and started again while clients ask by REST, gRPC, gRPC streams and in
sequences; then one is killed. gRPC that balances in the client is tried beside HAProxy. It prints a line `ok …` for each check, with what was
counted, and exits with 1 where one failed. Needs the packages of requirements.txt and, for HAProxy, the program `haproxy`.
"""

import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
#: Drain delay that deploy/haproxy.cfg and deploy/envoy.yaml ask for.
DRAIN_DELAY = 3
#: Seconds that any request may take, longer than all that is measured here.
TIMEOUT = 10
#: Seconds between two requests of a client: a machine of two cores has three servers, a balancer and the clients.
PACE = 0.01
#: Longest wait of a client, in seconds, on a machine that has time for its processes.
WAIT_MAX = 0.3

ECHO = """backend: "identity"
input { name: "x" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT64 dims: [ 1 ] }
"""
#: It takes a while, so that there are requests in flight when its server is killed.
SLOW = ECHO + 'instance_group { count: 8 } parameters { key: "execute_delay_ms" value { string_value: "30" } }\n'
#: The run time differs by server: see `Replica`.
WORK = ECHO + 'instance_group { count: 4 } parameters { key: "execute_delay_ms" value { string_value: "DELAY" } }\n'
#: Adds up; its last answer has the number of the sequence added.
SUM = """backend: "dyna_sequence"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 10000000
  oldest { max_candidate_sequences: 200 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
#: A model for each kind of client, so that the counts of servers can be held against those of its clients.
MODELS = {
    **{name: ECHO for name in ("rest", "grpc", "stream", "client")},
    **{name: SLOW for name in ("slow", "slow_client")},
    **{name: SUM for name in ("sum", "sum_stream", "sum_hash", "sum_parted")},
    "work": WORK,
}

failures = []


def report(name, is_well, figures):
    print(f"{'ok' if is_well else 'FAILED'} {name}: {figures}", flush=True)
    if not is_well:
        failures.append(name)


def free_port():
    """A port below those that the system gives to clients: no client takes it while its server is started again."""
    for port in random.sample(range(18000, 32000), 200):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def wait_until(what, holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


# -- protobuf, as much of it as is sent here


def varint(number):
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(data + bytes([number]))


def field(number, value):
    """A field with bytes, a text, a whole number or a truth value in it."""
    if isinstance(value, int):
        return varint(number << 3) + varint(int(value))
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """Pairs of number and value of a message."""
    at = 0

    def next_varint():
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        key = next_varint()
        if key & 7 == 0:
            yield key >> 3, next_varint()
        else:
            size = next_varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
            yield key >> 3, data[at : at + size]
            at += size


def infer_request(model, tensor, datatype, shape, contents, parameters=()):
    """ModelInferRequest."""
    entries = b""
    for name, value in parameters:
        kind = 1 if isinstance(value, bool) else 2
        entries += field(4, field(1, name) + field(2, field(kind, value)))
    described = field(1, tensor) + field(2, datatype) + field(3, b"".join(map(varint, shape)))
    return field(1, model) + entries + field(5, described) + field(7, contents)


def output_of(response):
    """The first output of a ModelInferResponse."""
    return next(value for number, value in fields(response) if number == 6)


def echo_request(model, nonce):
    return infer_request(model, "x", "INT64", [1], struct.pack("<q", nonce))


def nonce_of(response):
    return struct.unpack("<q", output_of(response))[0]


def sum_request(model, sequence, value, is_first, is_last):
    flags = (("sequence_id", sequence), ("sequence_start", is_first), ("sequence_end", is_last))
    return infer_request(model, "INPUT", "INT32", [1, 1], struct.pack("<i", value), flags)


def sum_of(response):
    return struct.unpack("<i", output_of(response))[0]


# -- servers


def read_url(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


class Replica:
    """A server that keeps its ports when it is started again. Counts are over all its lives."""

    def __init__(self, binary, folder, number, run_ms):
        self.folder = folder / f"replica-{number}"
        for name, config in MODELS.items():
            (self.folder / "models" / name / "1").mkdir(parents=True)
            (self.folder / "models" / name / "config.pbtxt").write_text(config.replace("DELAY", str(run_ms)))
        self.ports = {name: free_port() for name in ("http", "grpc", "metrics")}
        self.command = [
            binary, "serve", str(self.folder / "models"), "--shards=1", "--gpu=off", f"--drain-delay={DRAIN_DELAY}",
            "--metrics-interval-ms=500", "--access-log=1", *(f"--{name}-port={port}" for name, port in self.ports.items()),
            *(f"--{name}-address=127.0.0.1" for name in self.ports),
        ]  # fmt: skip
        self.address = f"127.0.0.1:{self.ports['http']}"
        self.past, self.now = {}, {}
        self.start()

    def start(self):
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        wait_until("a replica is ready", self.is_ready)

    def is_ready(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"a replica ended: {(self.folder / 'log').read_text()[-2000:]}")
        try:
            read_url(f"http://{self.address}/v2/health/ready")
            return True
        except OSError:
            return False

    def look(self):
        """Reads the counts; False if the replica no longer answers."""
        try:
            text = read_url(f"http://127.0.0.1:{self.ports['metrics']}/metrics")
        except (OSError, http.client.HTTPException):
            return False
        found = re.findall(r'^nv_inference_request_success\{model="(\w+)",version="1"\} (\d+)$', text, re.M)
        self.now = {model: int(count) for model, count in found}
        unknown = re.findall(r'^deuteron_sequences_unknown_total\{model="(\w+)",version="1"\} (\d+)$', text, re.M)
        self.now |= {f"unknown {model}": int(count) for model, count in unknown}
        return True

    def logged(self):
        """Answers without a mistake in the access log, by model, over all lives."""
        text = (self.folder / "log").read_text()
        return collections.Counter(re.findall(r' access\] .* model="(\w+)" version=1 status=(?:0|200) ', text))

    def end_life(self):
        for model, count in self.now.items():
            self.past[model] = self.past.get(model, 0) + count
        self.now = {}

    def count(self, model):
        return self.past.get(model, 0) + self.now.get(model, 0)

    def drain(self):
        """Asks it to end, and counts to the last."""
        self.process.send_signal(signal.SIGTERM)
        while self.process.poll() is None:
            self.look()
            time.sleep(0.02)
        self.end_life()
        return self.process.returncode

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.kill()


# -- clients


class Lost(Exception):
    """A request without the answer that it should have."""


class Stall(threading.Thread):
    """Longest wait of this process itself for a core: no client here can be faster."""

    def __init__(self):
        super().__init__(daemon=True)
        self.longest = 0.0
        self.start()

    def run(self):
        while True:
            before = time.monotonic()
            time.sleep(0.005)
            self.longest = max(self.longest, time.monotonic() - before - 0.005)

    def take(self):
        longest, self.longest = self.longest, 0.0
        return longest


class Client(threading.Thread):
    """Asks again and again until it is stopped: one request in flight."""

    def __init__(self, address, model):
        super().__init__(daemon=True)
        self.address, self.model = address, model
        self.answered, self.lost, self.longest = 0, [], 0.0
        self.is_over = False

    def run(self):
        while not self.is_over:
            self.one(self.ask)
            time.sleep(PACE)
        self.close()

    def one(self, ask):
        begun = time.monotonic()
        try:
            ask()
            self.answered += 1
        except (Lost, OSError, http.client.HTTPException, grpc.RpcError) as error:
            text = f"{error.code()} {error.details()}" if isinstance(error, grpc.RpcError) else repr(error)
            self.lost.append((begun, text))
            self.close()
        self.longest = max(self.longest, time.monotonic() - begun)

    def close(self):
        pass


class Rest(Client):
    connection = None

    def ask(self):
        nonce = random.getrandbits(40)
        body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [nonce]}]}
        answer = self.post(body, {})
        if answer["outputs"][0]["data"] != [nonce]:
            raise Lost(f"{nonce} was asked and {answer} came")

    def post(self, body, headers):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT)
        self.connection.request("POST", f"/v2/models/{self.model}/infer", json.dumps(body), headers)
        reply = self.connection.getresponse()
        self.reply = reply
        text = reply.read().decode()
        if reply.status != 200:
            raise Lost(f"{reply.status} {text}")
        return json.loads(text)

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class PartedRest(Rest):
    """Head and body come one after the other, as from most clients. A balancer that sends a request again must have both."""

    PAUSE = 0.005

    def post(self, body, headers):
        self.connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT)
        text = json.dumps(body).encode()
        self.connection.putrequest("POST", f"/v2/models/{self.model}/infer")
        self.connection.putheader("Content-Length", str(len(text)))
        self.connection.endheaders()
        for part in (text[:10], text[10:]):
            time.sleep(self.PAUSE)
            self.connection.send(part)
        reply = self.connection.getresponse()
        text = reply.read().decode()
        self.close()
        if reply.status != 200:
            raise Lost(f"{reply.status} {text}")
        return json.loads(text)


class SlowRest(PartedRest):
    """A body takes longer than a second."""

    PAUSE = 0.6


class Grpc(Client):
    #: Each client has a connection of its own.
    OPTIONS = (("grpc.use_local_subchannel_pool", 1),)

    def __init__(self, address, model, options=()):
        super().__init__(address, model)
        self.channel = grpc.insecure_channel(address, options=(*self.OPTIONS, *options))
        self.infer = self.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    def ask(self):
        nonce = random.getrandbits(40)
        answer = nonce_of(self.infer(echo_request(self.model, nonce), timeout=TIMEOUT))
        if answer != nonce:
            raise Lost(f"{nonce} was asked and {answer} came")


class Stream:
    """One ModelStreamInfer: a request goes out, its answer comes."""

    def __init__(self, channel):
        self.requests = []
        self.is_changed = threading.Condition()
        self.is_closed = False
        method = "/inference.GRPCInferenceService/ModelStreamInfer"
        self.answers = channel.stream_stream(method)(self.outgoing())

    def outgoing(self):
        while True:
            with self.is_changed:
                self.is_changed.wait_for(lambda: self.requests or self.is_closed)
                if not self.requests:
                    return
                request = self.requests.pop(0)
            yield request

    def ask(self, request):
        """The response. `EOFError` where the server ends the stream, or asks for another one, as servers that drain do."""
        with self.is_changed:
            self.requests.append(request)
            self.is_changed.notify()
        try:
            answer = dict(fields(next(self.answers)))
        except StopIteration:
            raise EOFError("the stream ended") from None
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE and "shutting down" in error.details():
                raise EOFError(error.details()) from None
            raise
        if 1 in answer:
            text = answer[1].decode()
            raise EOFError(text) if "shutting down" in text else Lost(text)
        return answer[2]

    def close(self):
        with self.is_changed:
            self.is_closed = True
            self.is_changed.notify()
        self.answers.cancel()


class Streams(Grpc):
    """Requests on one stream, and on the next one where a server that drains ended it without having run the request."""

    stream, opened = None, 0

    def ask(self):
        nonce = random.getrandbits(40)
        answer = nonce_of(self.send(echo_request(self.model, nonce)))
        if answer != nonce:
            raise Lost(f"{nonce} was asked and {answer} came")

    def send(self, request):
        for _ in range(3):
            if self.stream is None:
                self.stream = Stream(self.channel)
                self.opened += 1
            try:
                return self.stream.ask(request)
            except EOFError:
                self.close()
        raise Lost("three streams ended")

    def close(self):
        if self.stream is not None:
            self.stream.close()
            self.stream = None


class Sequences:
    """Part of a client: sequences of ten requests in half a second, one after another. A broken one is counted and left."""

    LENGTH = 10
    broken, finished, wrong = 0, 0, 0
    why = ""

    def run(self):
        while not self.is_over:
            self.sequence()
        self.close()

    def sequence(self):
        number, total = random.randrange(1, 1 << 20), 0
        self.begin(number)
        for place in range(self.LENGTH):
            value = random.randrange(1000)
            total += value
            lost_before = len(self.lost)
            is_last = place == self.LENGTH - 1
            self.one(lambda: self.step(number, value, place == 0, is_last))
            if len(self.lost) > lost_before:
                self.broken += 1
                self.why = self.lost[-1][1]
                return
            if self.sum != total + (number if is_last else 0):
                self.wrong += 1
                return
            time.sleep(0.05)
        self.finished += 1

    def begin(self, number):
        pass


class RestSequences(Sequences, Rest):
    """A new connection for each request, so that nothing but the header keeps a sequence together."""

    def __init__(self, address, model, has_id=True, tells_server=False):
        super().__init__(address, model)
        self.has_id, self.tells_server = has_id, tells_server

    def begin(self, number):
        self.headers = {"sequence-id": str(number)} if self.has_id else {}

    def step(self, number, value, is_first, is_last):
        parameters = {"sequence_id": number, "sequence_start": is_first, "sequence_end": is_last}
        tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
        answer = self.post({"parameters": parameters, "inputs": [tensor]}, {**self.headers, "Connection": "close"})
        self.sum = answer["outputs"][0]["data"][0]
        server = self.reply.getheader("sequence-server")
        if self.tells_server and server:
            self.headers["sequence-server"] = server
        self.close()


class GrpcSequences(Sequences, Grpc):
    def __init__(self, address, model, has_id=True, tells_server=False):
        super().__init__(address, model)
        self.has_id, self.tells_server = has_id, tells_server

    def begin(self, number):
        self.metadata = {"sequence-id": str(number)} if self.has_id else {}

    def step(self, number, value, is_first, is_last):
        request = sum_request(self.model, number, value, is_first, is_last)
        answer, call = self.infer.with_call(request, timeout=TIMEOUT, metadata=tuple(self.metadata.items()))
        self.sum = sum_of(answer)
        server = dict(call.initial_metadata()).get("sequence-server")
        if self.tells_server and server:
            self.metadata["sequence-server"] = server


class StreamSequences(Sequences, Streams):
    """Sequences in a stream. Where the stream has ended, or refuses a new sequence, the sequence begins on another one."""

    def step(self, number, value, is_first, is_last):
        request = sum_request(self.model, number, value, is_first, is_last)
        if is_first:
            self.sum = sum_of(self.send(request))
            return
        try:
            self.sum = sum_of(self.stream.ask(request))
        except EOFError as error:
            self.close()
            raise Lost(f"the stream ended in a sequence: {error}") from None


class Bench:
    """`deuteron bench`: many requests in flight."""

    IN_FLIGHT, COUNT = 32, 800

    def __init__(self, binary, protocol, address):
        command = [binary, "bench", "-m", "slow", "-i", protocol, "-u", address, f"--concurrency-range={self.IN_FLIGHT}"]
        command.append(f"--request-count={self.COUNT}")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def result(self):
        """Requests with an answer, requests without, and the reason of the last of these."""
        text, _ = self.process.communicate(timeout=30)
        counts = re.search(r"(\d+) requests ok, (\d+) failed", text)
        if counts is None:
            raise RuntimeError(f"bench: {text}")
        return int(counts[1]), int(counts[2]), "".join(re.findall(r"\d+ x (.*)", text)[-1:])


def start(clients):
    for client in clients:
        client.start()
    return clients


def stop(clients):
    for client in clients:
        client.is_over = True
    for client in clients:
        client.join(TIMEOUT)
    return clients


def without_answer(clients):
    return sorted(one for client in clients for one in client.lost)


# -- balancers


class Balancer:
    """A balancer as a process, with three addresses of replicas."""

    def __init__(self, command, folder, environment=None):
        self.log = folder / f"{self.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        wait_until(f"{self.name} has a replica", self.answers)
        # It has looked at all.
        time.sleep(0.6)

    def answers(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {self.log.read_text()[-2000:]}")
        try:
            read_url(f"http://{self.rest}/v2/health/ready")
            return True
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def replace(text, old, new):
    if old not in text:
        raise RuntimeError(f"the shipped file lacks {old!r}")
    return text.replace(old, new)


class HAProxy(Balancer):
    """deploy/haproxy.cfg, unchanged: its addresses are variables. With `limit` its limit of 60 s is that short."""

    name = "haproxy"

    def __init__(self, folder, replicas, repeat=False, limit=None):
        self.rest, self.grpc = (f"127.0.0.1:{free_port()}" for _ in range(2))
        places = {f"REPLICA_{number}": replica.address for number, replica in enumerate(replicas, 1)}
        others = {name: f"127.0.0.1:{free_port()}" for name in ("STATS_BIND", "PEERS_BIND")}
        environment = {"PATH": "/usr/sbin:/usr/bin:/bin", "REST_BIND": self.rest, "GRPC_BIND": self.grpc, **places, **others}
        if repeat:
            environment["REPEAT"] = "1"
        file = DEPLOY / "haproxy.cfg"
        if limit:
            text = replace(file.read_text(), "timeout client 60s", f"timeout client {limit}")
            file = folder / "haproxy.cfg"
            file.write_text(replace(text, "timeout server 300s", f"timeout server {limit}"))
        super().__init__([shutil.which("haproxy") or "/usr/sbin/haproxy", "-W", "-f", str(file)], folder, environment)

    def reload(self):
        self.process.send_signal(signal.SIGUSR2)


class Envoy(Balancer):
    """deploy/envoy.yaml with other addresses. `repeat` and `cluster` change what the file says that one may change."""

    name = "envoy"

    def __init__(self, folder, replicas, repeat=False, limit=None, cluster="least_requests"):
        import envoy

        ports = [free_port() for _ in range(3)]
        self.rest, self.grpc, self.admin = (f"127.0.0.1:{port}" for port in ports)
        text = (DEPLOY / "envoy.yaml").read_text()
        for old, port in zip(("0.0.0.0, port_value: 8000", "0.0.0.0, port_value: 8001", "127.0.0.1, port_value: 9901"), ports):
            text = replace(text, old, f"127.0.0.1, port_value: {port}")
        for number, replica in enumerate(replicas, 1):
            old = f"10.0.0.1{number}, port_value: 8000"
            text = replace(text, old, replica.address.replace(":", ", port_value: "))
        if repeat:
            old = "retry_on: connect-failure,refused-stream,reset-before-request,retriable-status-codes,unavailable"
            text = replace(text, old, old.replace("reset-before-request", "reset"))
        if limit:
            text = replace(text, "timeout: 300s", f"timeout: {limit}")
            text = replace(text, "codec_type: AUTO", f"codec_type: AUTO\n                stream_idle_timeout: {limit}")
        if cluster != "least_requests":
            head, tail = text.rsplit("cluster: least_requests\n", 1)
            text = f"{head}cluster: {cluster}\n{tail}"
        file = folder / "envoy.yaml"
        file.write_text(text)
        program = pathlib.Path(envoy.__file__).parent / "_bin" / "envoy"
        flags = ["--concurrency", "2", "--use-dynamic-base-id", "-l", "warning"]
        super().__init__([str(program), "-c", str(file), *flags], folder)


def grpc_options(retries):
    """The channel of deploy/grpc-service-config.json, with the retries of the guide where they are asked for."""
    config = json.loads((DEPLOY / "grpc-service-config.json").read_text())
    if retries:
        page = (ROOT / "docs" / "guide" / "balancers.md").read_text()
        config |= json.loads(next(block for block in re.findall(r"```json\n(.*?)```", page, re.S) if "retryPolicy" in block))
    return (("grpc.service_config", json.dumps(config)),)


# -- what is checked


class Road:
    """One balancer with the three replicas behind it."""

    def __init__(self, folder, replicas, drains, stall, balancer):
        self.folder, self.replicas, self.drained = folder, replicas, replicas[:drains]
        self.stall, self.kind = stall, balancer
        self.name = balancer.name
        self.direct = "ipv4:" + ",".join(replica.address for replica in replicas)
        self.has_client = balancer is HAProxy

    def play(self):
        self.balancer = self.kind(self.folder, self.replicas)
        try:
            self.sequences_need_their_header()
            if self.kind is HAProxy:
                self.reload()
            self.drains()
            self.kills(repeat=False, victim=self.replicas[0])
        finally:
            self.balancer.stop()
        self.balancer = self.kind(self.folder, self.replicas, repeat=True, limit="2s")
        try:
            idle, victim = self.silent_stream()
            begun = time.monotonic()
            self.kills(repeat=True, victim=victim)
            self.end_of_silence(idle, begun)
        finally:
            self.balancer.stop()

    def sequences(self, model, count, **more):
        over_rest = [RestSequences(self.balancer.rest, model, **more) for _ in range(count)]
        return over_rest + [GrpcSequences(self.balancer.grpc, model, **more) for _ in range(count)]

    def report_sequences(self, name, clients, is_well):
        broken, finished, wrong = (sum(getattr(client, what) for client in clients) for what in ("broken", "finished", "wrong"))
        why = next((client.why for client in clients if client.why), "")
        figures = f"{broken} broken, {finished} finished" + (f", {wrong} with a wrong sum" if wrong else "")
        is_well = is_well(broken, finished) and not wrong
        report(f"{self.name}, {name}", is_well, figures + (f": {why}" if why and not is_well else ""))

    def sequences_need_their_header(self):
        """The control: without the header sequences break, and the servers count it."""
        before = self.counted("unknown sum_parted")
        clients = stop_after(1.0, self.sequences("sum_parted", 3, has_id=False))
        broken, finished = (sum(getattr(client, what) for client in clients) for what in ("broken", "finished"))
        unknown = self.counted("unknown sum_parted") - before
        # Servers older than the metric do not have it.
        has_metric = any("unknown sum_parted" in replica.now for replica in self.replicas)
        is_well = broken > 2 * max(finished, 1) and (unknown == broken or not has_metric)
        figures = f"{broken} broken, {finished} finished" + (f", {unknown} counted as unknown" if has_metric else "")
        report(f"{self.name}, sequences without header break", is_well, figures)

    def reload(self):
        clients = start(self.sequences("sum", 4))
        time.sleep(0.3)
        self.balancer.reload()
        time.sleep(0.8)
        stop(clients)
        self.report_sequences("sequences over a reload", clients, lambda broken, finished: broken == 0 < finished)

    def drains(self):
        """Replicas are drained and started again one after the other, under load of all kinds."""
        before = {model: self.counted(model) for model in MODELS}
        self.logged_before = {model: self.logged(model) for model in MODELS}
        tells_server = self.kind is Envoy
        kinds = {
            "REST": [Rest(self.balancer.rest, "rest") for _ in range(4)],
            "gRPC": [Grpc(self.balancer.grpc, "grpc") for _ in range(4)],
            "gRPC streams": [Streams(self.balancer.grpc, "stream") for _ in range(3)],
        }
        if self.has_client:
            kinds["gRPC balanced in the client"] = [Grpc(self.direct, "client", grpc_options(False)) for _ in range(3)]
        slow = [SlowRest(self.balancer.rest, "rest") for _ in range(2)]
        sticky = self.sequences("sum", 4, tells_server=tells_server)
        streamed = [StreamSequences(self.balancer.grpc, "sum_stream") for _ in range(3)]
        hashed = self.sequences("sum_hash", 3) if tells_server else []
        all_clients = [*sum(kinds.values(), []), *slow, *sticky, *streamed, *hashed]
        self.stall.take()
        start(all_clients)
        codes = []
        for replica in self.drained:
            time.sleep(0.2)
            codes.append(replica.drain())
            replica.start()
            # The balancer sees that it is back before the next one goes.
            time.sleep(1.2)
        stop(all_clients)
        stall = self.stall.take()
        report(f"{self.name}, drained replicas end with 0", codes == [0] * len(self.drained), f"{codes}")
        for name, clients in kinds.items():
            self.report_kind(f"{name} over drains", clients, stall)
        lost, answered = without_answer(slow), sum(client.answered for client in slow)
        figures = f"{len(lost)} of {answered + len(lost)} lost" + (f": {lost[0][1]}" if lost else "")
        report(f"{self.name}, REST bodies that take 1.2 s over drains", not lost and answered > len(self.drained), figures)
        self.report_sequences("sequences over drains", sticky, lambda broken, finished: broken == 0 < finished)
        self.report_sequences("sequences in streams over drains", streamed, lambda broken, finished: broken == 0 < finished)
        if hashed:
            self.report_sequences("sequences by hash alone over drains", hashed, lambda broken, finished: broken < finished)
        self.report_counts(before, {"rest": kinds["REST"] + slow, "grpc": kinds["gRPC"], "stream": kinds["gRPC streams"],
                                    "client": kinds.get("gRPC balanced in the client", []), "sum": sticky,
                                    "sum_stream": streamed, "sum_hash": hashed})  # fmt: skip

    def report_kind(self, name, clients, stall):
        lost = without_answer(clients)
        answered, longest = sum(client.answered for client in clients), max(client.longest for client in clients)
        # Allowance for a machine that is busy with other work: the time that this process itself waited for a core.
        bound = WAIT_MAX + 5 * stall
        opened = sum(getattr(client, "opened", 0) for client in clients)
        figures = f"{len(lost)} of {answered + len(lost)} lost, longest wait {longest:.3f} s"
        figures += f" (at most {bound:.2f} s: this process itself waited {stall:.3f} s for a core)"
        figures += f", {opened} streams" if opened else ""
        is_well = not lost and answered > 100 and longest <= bound
        report(f"{self.name}, {name}", is_well, figures + (f": {lost[0][1]}" if lost else ""))

    def counted(self, model):
        for replica in self.replicas:
            replica.look()
        return sum(replica.count(model) for replica in self.replicas)

    def logged(self, model):
        return sum(replica.logged()[model] for replica in self.replicas)

    def report_counts(self, before, ledgers):
        """Compares the clients' answers with metrics and access logs. A replica's metrics port closes when the drain begins, and
        sequences in streams go on after it: these are in the access log alone."""
        asked = {model: sum(client.answered for client in clients) for model, clients in ledgers.items() if clients}
        counted = {model: self.counted(model) - before[model] for model in asked if model != "sum_stream"}
        begun = time.monotonic()
        while True:
            logged = {model: self.logged(model) - self.logged_before[model] for model in asked}
            # A log line may come after its answer.
            if logged == asked or time.monotonic() > begun + 2:
                break
            time.sleep(0.2)
        wrong = {model: (count, counted.get(model), logged[model]) for model, count in asked.items()
                 if not count == counted.get(model, count) == logged[model]}  # fmt: skip
        unary = sum(asked[model] for model in counted)
        figures = f"clients have {unary} answers and the metrics {sum(counted.values())}; "
        figures += f"with sequences in streams {sum(asked.values())}, and the access logs {sum(logged.values())}"
        report(f"{self.name}, counts of clients and replicas", not wrong, figures + (f": {wrong}" if wrong else ""))

    def kills(self, repeat, victim):
        """One replica is killed with requests in flight."""
        kinds = {
            "REST": [PartedRest(self.balancer.rest, "slow") for _ in range(4)],
            "gRPC": [Grpc(self.balancer.grpc, "slow") for _ in range(4)],
        }
        if self.has_client:
            kinds["gRPC balanced in the client"] = [Grpc(self.direct, "slow_client", grpc_options(repeat)) for _ in range(4)]
        all_clients = start(sum(kinds.values(), []))
        places = {"REST": ("http", self.balancer.rest), "gRPC": ("grpc", self.balancer.grpc)}
        benches = {name: Bench(self.replicas[0].command[0], *place) for name, place in places.items()}
        time.sleep(0.6)
        killed = time.monotonic()
        victim.kill()
        time.sleep(1.0)
        victim.end_life()
        victim.start()
        time.sleep(0.7)
        stop(all_clients)
        how = "with repeats" if repeat else "as shipped"
        for name, bench in benches.items():
            answered, lost, why = bench.result()
            is_well = answered + lost == bench.COUNT and lost <= (0 if repeat else bench.IN_FLIGHT)
            figures = f"{lost} of {answered + lost} lost" + (f": {why}" if lost else "")
            report(f"{self.name}, {name} with {bench.IN_FLIGHT} in flight, kill -9 {how}", is_well, figures)
        for name, clients in kinds.items():
            lost = without_answer(clients)
            answered = sum(client.answered for client in clients)
            # Each client has one request in flight. The kernel takes connections of a dead server for some milliseconds.
            late = [one for one in lost if one[0] > killed + 0.1]
            in_flight = len([one for one in lost if one[0] <= killed + 0.1])
            is_well = not late and (not lost if repeat else in_flight <= len(clients))
            figures = f"{len(lost)} of {answered + len(lost)} lost"
            figures += "" if repeat else f", all in flight there (at most {len(clients)})" if not late else f", {len(late)} later"
            report(f"{self.name}, {name}, kill -9 {how}", is_well and answered > 20, figures + (f": {lost[-1][1]}" if lost else ""))

    def silent_stream(self):
        """A stream that is silent for longer than the limit of requests, which is two seconds here; and a replica without it."""
        for replica in self.replicas:
            replica.look()
        before = [replica.count("stream") for replica in self.replicas]
        client = Streams(self.balancer.grpc, "stream")
        client.ask()
        for replica in self.replicas:
            replica.look()
        after = [replica.count("stream") for replica in self.replicas]
        return client, self.replicas[[now == then for now, then in zip(after, before)].index(True)]

    def end_of_silence(self, client, begun):
        time.sleep(max(0.0, 3.0 - (time.monotonic() - begun)))
        silence = time.monotonic() - begun
        mistake = ""
        try:
            client.ask()
        except (Lost, grpc.RpcError) as error:
            mistake = f": {error}"
        is_well = not mistake and client.opened == 1
        client.close()
        report(f"{self.name}, a silent stream", is_well, f"open after {silence:.1f} s, the limit of others is 2 s{mistake}")


def stop_after(seconds, clients):
    start(clients)
    time.sleep(seconds)
    return stop(clients)


def shares(replicas, seconds):
    """Number of the model's requests that each replica ran in that time."""
    before = [replica.look() and replica.count("work") for replica in replicas]
    time.sleep(seconds)
    return [replica.look() and replica.count("work") - count for replica, count in zip(replicas, before)]


def has_report(address, folder, over_grpc):
    """True if an answer has a load report, for a client that asks for one. grpcio would not show the trailer."""
    url, more = f"http://{address}/v2/models/rest/infer", []
    body = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]}'
    if over_grpc:
        message = echo_request("grpc", 1)
        url, body = f"http://{address}/inference.GRPCInferenceService/ModelInfer", struct.pack(">BI", 0, len(message)) + message
        more = ["--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "te: trailers"]
    (folder / "body").write_bytes(body)
    asks = ["-H", "endpoint-load-metrics-format: text", "--data-binary", f"@{folder / 'body'}"]
    done = subprocess.run(["curl", "-sv", "-o", "/dev/null", url, *more, *asks], capture_output=True, text=True, timeout=TIMEOUT)
    if not re.search("grpc-status: 0" if over_grpc else " 200", done.stderr):
        raise RuntimeError(f"curl: {done.stderr}")
    return "< endpoint-load-metrics" in done.stderr.lower()


def load_reports(folder, replicas):
    """With weights by load reports a replica that takes four times as long for a run gets less. Before Envoy believes the
    reports, all get the same."""
    balancer = Envoy(folder, replicas, cluster="load_reports")
    clients = [kind(address, "work") for kind, address in ((Rest, balancer.rest), (Grpc, balancer.grpc)) for _ in range(3)]
    try:
        start(clients)
        begun, is_split = time.monotonic(), False
        # Connections first.
        time.sleep(0.7)
        first = shares(replicas, 1.0)
        # It takes two looks of the servers, and two seconds that Envoy waits before it believes them.
        time.sleep(1.5)
        while not is_split and time.monotonic() - begun < 12:
            then = shares(replicas, 1.0)
            is_split = sum(then) > 60 and 0 < then[2] < 0.25 * sum(then[:2])
        took = time.monotonic() - begun
        places = [(address, over_grpc) for address in (balancer.rest, replicas[0].address) for over_grpc in (False, True)]
        seen = [has_report(address, folder, over_grpc) for address, over_grpc in places]
        stop(clients)
    finally:
        balancer.stop()
    lost = without_answer(clients)
    figures = f"{then[0]} : {then[1]} : {then[2]} requests in a second, the last replica is four times as slow, {took:.0f} s after "
    figures += f"the start; {first[0]} : {first[1]} : {first[2]} without reports"
    is_well = is_split and min(first) > 0.7 * max(first) and not lost
    report("envoy, weights by load reports", is_well, figures + (f": {lost[0][1]}" if lost else ""))
    told = "a client that asks for one sees it from a replica, and not through Envoy: " + ", ".join(map(str, seen))
    report("envoy, load reports stay inside", seen == [False, False, True, True], told)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drains", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("roads", nargs="*", choices=("haproxy", "envoy", []))
    arguments = parser.parse_args()
    binary, roads = str(arguments.binary.resolve()), arguments.roads or ["haproxy", "envoy"]
    begun = time.monotonic()
    stall = Stall()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        replicas = []
        try:
            for number, run_ms in enumerate((5, 5, 20), 1):
                replicas.append(Replica(binary, folder, number, run_ms))
            for road in roads:
                Road(folder, replicas, arguments.drains, stall, {"haproxy": HAProxy, "envoy": Envoy}[road]).play()
            if "envoy" in roads:
                load_reports(folder, replicas)
        finally:
            for replica in replicas:
                replica.stop()
    print(f"took {time.monotonic() - begun:.0f} s", flush=True)
    if failures:
        sys.exit(f"{len(failures)} failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()

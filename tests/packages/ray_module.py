"""Checks of `deuteron.ray`, with a stand-in for Ray: `ray_module.py MODELS`. A line for each check that holds.

The stand-in makes replicas in this process and calls the methods that Ray Serve calls; `.ci/run ray` tries the same on Ray itself.
"""

import asyncio
import contextlib
import contextvars
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.error
import urllib.request

MODELS = pathlib.Path(sys.argv[1]).resolve()
TLS = pathlib.Path(__file__).resolve().parent.parent / "tls"

#: The replica whose method is being called.
current = contextvars.ContextVar("current")


class Unavailable(Exception):
    """No replica."""


class Application:
    def __init__(self, replica, options, arguments):
        self.replica, self.options, self.arguments = replica, options, arguments


class Handle:
    """Of a running application: its replicas, by their names."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.broken = None

    def broadcast(self, method):
        def results(timeout_s, return_exceptions):
            assert timeout_s > 0 and return_exceptions
            if self.broken:
                raise self.broken
            if not self.replicas:
                raise Unavailable
            return [self.call(name, method) for name in self.replicas]

        async def results_async(**more):
            return results(**more)

        return types.SimpleNamespace(results=results, results_async=results_async)

    def call(self, name, method, *args):
        current.set(name)
        try:
            return getattr(self.replicas[name], method)(*args)
        except Exception as error:
            return error


apps = {}


def modules():
    """`ray`, as far as `deuteron.ray` uses it."""
    ray, serve, exceptions = (types.ModuleType(name) for name in ("ray", "ray.serve", "ray.serve.exceptions"))

    def deployment(**options):
        return lambda replica: types.SimpleNamespace(bind=lambda **arguments: Application(replica, options, arguments))

    ray.serve, ray.util = serve, types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    ray.get_runtime_context = lambda: types.SimpleNamespace(get_node_id=lambda: "node")
    serve.deployment, serve.Application = deployment, Application
    serve.get_app_handle = lambda name: apps[name]
    serve.get_deployment_handle = lambda deployment, app: apps[app]
    serve.get_replica_context = lambda: types.SimpleNamespace(
        replica_tag=current.get(), deployment="deuteron", app_name="default"
    )
    exceptions.DeploymentUnavailableError = Unavailable
    return {"ray": ray, "ray.serve": serve, "ray.serve.exceptions": exceptions}


@contextlib.contextmanager
def running(app):
    """As `serve.run`, and at the end as `serve.delete`."""
    apps["default"] = handle = Handle({})
    try:
        for index in range(app.options["num_replicas"]):
            handle.replicas[f"r{index}"] = app.replica(**app.arguments)
        yield handle
    finally:
        for replica in handle.replicas.values():
            replica.__del__()


def quick(*args, **more):
    """An application that ends at once."""
    return deuteron.ray.deployment(MODELS / "digits", args=args, **{"drain_delay": 0, "exit_timeout": 1, **more})


def ask(address):
    body = (MODELS / "digits" / "request.json").read_bytes()
    with urllib.request.urlopen(f"http://{address}/v2/models/digits/infer", body, timeout=10) as reply:
        return json.load(reply)["outputs"][0]["data"][0].split(":")[2]


def cores_of(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
    ranges = [part.split("-") for part in text.split(",")]
    return {core for part in ranges for core in range(int(part[0]), int(part[-1]) + 1)}


def without_ray_nothing_else_is_missing():
    program = (
        "import sys\n"
        "sys.modules['ray'] = None\n"
        "import deuteron\n"
        "try:\n"
        "    import deuteron.ray\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'deuteron[ray]'" in said, said


def ray_is_told_what_was_asked_for():
    app = deuteron.ray.deployment(
        "models", num_replicas=3, num_cpus=2, num_gpus=0.5, drain_delay=7, exit_timeout=20, name="vision",
        max_replicas_per_node=1, health_check_period_s=5, ray_actor_options={"resources": {"fast": 1}},
    )
    assert app.options == {
        "name": "vision", "num_replicas": 3, "max_replicas_per_node": 1, "health_check_period_s": 5,
        "health_check_timeout_s": 5.0, "graceful_shutdown_wait_loop_s": 0.1, "graceful_shutdown_timeout_s": 37.0,
        "ray_actor_options": {"num_cpus": 2, "num_gpus": 0.5, "resources": {"fast": 1}},
    }, app.options
    assert app.arguments["cores"] == 2 and app.arguments["args"] == ["--drain-delay=7", "--exit-timeout-secs=20"]
    # Ray kills a stop that takes longer: the server's own end comes before.
    assert 27 < app.arguments["stop_timeout"] < 37


def a_configuration_of_ray_serve_says_the_same():
    texts = {"models": "models", "num_replicas": "2", "num_gpus": "0.5", "args": '["--shards=1"]', "drain_delay": "0"}
    values = {"models": "models", "num_replicas": 2, "num_gpus": 0.5, "args": ["--shards=1"], "drain_delay": 0}
    one, two = deuteron.ray.app_builder(texts), deuteron.ray.app_builder(values)
    assert (one.options, one.arguments) == (two.options, two.arguments)
    assert one.options["num_replicas"] == 2 and "--shards=1" in one.arguments["args"]


def replicas_are_servers_and_all_are_found():
    with running(quick(num_replicas=2)):
        found = deuteron.ray.endpoints()
        assert [endpoint.replica for endpoint in found] == ["r0", "r1"]
        assert len({address for end in found for address in (end.http, end.grpc, end.metrics)}) == 6
        assert all(ask(address) == "seven" for end in found for address in (end.http, end.grpc))
        assert {endpoint.node for endpoint in found} == {"node"}
        pids = [endpoint.pid for endpoint in found]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert deuteron.ray.endpoints(Handle({})) == []


def a_server_has_cores_that_no_other_replica_has():
    all_cores = os.sched_getaffinity(0)
    # A large machine would get many servers.
    allowed = set(sorted(all_cores)[:2])
    os.sched_setaffinity(0, allowed)
    try:
        with running(quick(num_replicas=3)):
            taken = [cores_of(endpoint.pid) for endpoint in deuteron.ray.endpoints()]
            assert os.sched_getaffinity(0) == allowed
        with running(quick(num_cpus=0.5)):
            assert cores_of(deuteron.ray.endpoints()[0].pid) == allowed
    finally:
        os.sched_setaffinity(0, all_cores)
    assert len(taken) == 3 and allowed in taken, taken
    if len(allowed) > 1:
        # Replicas of another run of this test may have some.
        alone = [cores for cores in taken if cores != allowed]
        assert all(len(cores) == 1 for cores in alone) and len(set().union(*alone)) == len(alone), taken
    return f"{', '.join(str(sorted(cores)) for cores in taken)}"


def a_server_sees_the_gpus_that_ray_gave():
    os.environ["CUDA_VISIBLE_DEVICES"] = "3"
    try:
        with running(quick(num_gpus=1, env={"A": "b"})):
            variables = pathlib.Path(f"/proc/{deuteron.ray.endpoints()[0].pid}/environ").read_text().split("\0")
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    assert "CUDA_VISIBLE_DEVICES=3" in variables and "A=b" in variables


def a_server_that_is_dead_frozen_or_leaving_is_not_healthy():
    deuteron.ray.READY_SECONDS = 1.0
    for number, want in [(signal.SIGKILL, "ended with -9"), (signal.SIGSTOP, "timed out"), (signal.SIGTERM, "503")]:
        with running(quick("--drain-delay=2", num_replicas=2)) as handle:
            first, second = deuteron.ray.endpoints()
            assert handle.call("r0", "check_health") is None
            os.kill(first.pid, number)
            deadline = time.monotonic() + 30
            # A process that is killed closes its connections before it has ended.
            while want not in str(error := handle.call("r0", "check_health")):
                assert time.monotonic() < deadline, (number, error)
            assert isinstance(error, deuteron.ServerError), (number, error)
            assert deuteron.ray.endpoints() == [second]
            for endpoint in (first, second):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(endpoint.pid, signal.SIGKILL)


def a_replica_that_ends_drains_first():
    with running(quick(drain_delay=2)) as handle:
        (endpoint,) = deuteron.ray.endpoints()
        end = threading.Thread(target=handle.replicas["r0"].__del__)
        end.start()
        deadline = time.monotonic() + 5
        while handle.call("r0", "endpoint") is not None:
            assert time.monotonic() < deadline
        assert ask(endpoint.http) == "seven"
        end.join()
        assert not os.path.exists(f"/proc/{endpoint.pid}")


def a_replica_that_does_not_start_says_why():
    for app, want in [(quick("--http-prot=1"), "did you mean"), (quick(start_timeout=0.0), "was not ready after 0 s")]:
        try:
            app.replica(**app.arguments)
        except deuteron.ServerError as error:
            assert want in str(error), error
        else:
            raise AssertionError(f"{app.arguments} started")


def an_address_is_one_that_others_can_reach():
    with running(quick("--http-address=0.0.0.0", "--allow-grpc=false")):
        (endpoint,) = deuteron.ray.endpoints()
        assert endpoint.http.startswith("127.0.0.1:") and endpoint.grpc is None and endpoint.metrics, endpoint


def readiness_is_asked_over_tls_too():
    files = [f"--{port}-server-{name}={TLS / 'server'}.{end}" for port in ("http", "grpc", "metrics")
             for name, end in (("cert", "pem"), ("key", "key"))]
    for flag in ("use-ssl", "use-ssl-mutual"):
        more = [f"--{port}-root-cert={TLS / 'server'}.pem" for port in ("http", "grpc", "metrics")] if "mutual" in flag else []
        with running(quick(*files, *more, *(f"--{port}-{flag}=true" for port in ("http", "grpc", "metrics")))):
            assert len(deuteron.ray.endpoints()) == 1, flag


def balancers_and_prometheus_get_what_they_read():
    one = deuteron.ray.Endpoint("abc", "n1", 1, "10.0.0.4:1", "10.0.0.4:2", "10.0.0.4:3")
    two = deuteron.ray.Endpoint("def", "n2", 2, "10.0.0.5:1", None, None)
    text = deuteron.ray.haproxy_backend([one, two])
    assert text.startswith("backend deuteron\n") and text.endswith("    server abc 10.0.0.4:1\n    server def 10.0.0.5:1\n")
    text = deuteron.ray.haproxy_backend([one, two], port="grpc", name="models")
    assert text.startswith("backend models\n") and text.endswith("    server abc 10.0.0.4:2 proto h2 check-proto h2\n"), text
    targets = [{"targets": ["10.0.0.4:3"], "labels": {"ray_replica": "abc", "ray_node": "n1"}}]
    assert deuteron.ray.prometheus_targets([one, two]) == targets


def ray_s_proxy_tells_where_the_servers_are():
    with running(quick(num_replicas=2)) as handle:
        found = deuteron.ray.endpoints()

        def fetch(path, **query):
            request = types.SimpleNamespace(url=types.SimpleNamespace(path=path), query_params=query)
            return asyncio.run(handle.call("r0", "__call__", request))

        assert [entry["http"] for entry in fetch("/models")] == [endpoint.http for endpoint in found]
        assert fetch("/models/prometheus") == deuteron.ray.prometheus_targets(found)
        assert fetch("/haproxy/") == deuteron.ray.haproxy_backend(found)
        assert fetch("/haproxy", port="grpc") == deuteron.ray.haproxy_backend(found, port="grpc")


class Places:
    """Endpoints without servers, for a balancer."""

    def __init__(self, *hosts):
        self.hosts = list(hosts)
        self.handle = Handle({host: self for host in hosts})

    def endpoint(self):
        return deuteron.ray.Endpoint(current.get(), "node", 1, f"{current.get()}:1", f"{current.get()}:2", None)


def a_balancer_takes_turns():
    balancer = deuteron.ray.Balancer(Places("a", "b", "c").handle)
    assert sorted(balancer.call(str) for _ in range(6)) == ["a:1", "a:1", "b:1", "b:1", "c:1", "c:1"]
    assert deuteron.ray.Balancer(Places("a").handle, port="grpc").call(str) == "a:2"
    try:
        deuteron.ray.Balancer(Places("a").handle, port="htp")
    except ValueError as error:
        assert "'htp'" in str(error)
    else:
        raise AssertionError("there is no such port")


def a_balancer_asks_the_next_one_where_one_fails():
    asked = []

    def fail_at_a(address):
        asked.append(address)
        if address == "a:1":
            raise ConnectionRefusedError(address)
        return address

    balancer = deuteron.ray.Balancer(Places("a", "b").handle, refresh=60)
    assert {balancer.call(fail_at_a) for _ in range(4)} == {"b:1"}
    assert asked.count("a:1") == 1, asked

    def say(code):
        def asks(address):
            asked.append(code)
            raise urllib.error.HTTPError(address, code, "", None, None)

        return asks

    for code, tries_max in [(400, 1), (503, 32)]:
        asked.clear()
        try:
            deuteron.ray.Balancer(Places("a", "b").handle).call(say(code), timeout=1.0)
        except urllib.error.HTTPError as error:
            assert error.code == code and (len(asked) == 1) == (code == 400) and len(asked) <= tries_max, asked
        else:
            raise AssertionError(code)


def a_balancer_follows_what_comes_and_goes():
    places = Places("a")
    balancer = deuteron.ray.Balancer(places.handle, refresh=0.0)

    def until(address):
        deadline = time.monotonic() + 5
        while balancer.call(str) != address:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    until("a:1")
    places.handle.replicas = {"b": places}
    until("b:1")
    # Ray is out of order: the servers that are known are asked.
    places.handle.broken = RuntimeError("the head is gone")
    assert [balancer.call(str) for _ in range(3)] == ["b:1"] * 3
    places.handle.broken, places.handle.replicas = None, {}
    deadline = time.monotonic() + 5
    while True:
        try:
            balancer.call(str, timeout=0.2)
        except ConnectionError as error:
            assert "no server that is ready" in str(error)
            break
        assert time.monotonic() < deadline


without_ray_nothing_else_is_missing()
print("ok without_ray_nothing_else_is_missing", flush=True)
sys.modules.update(modules())

import deuteron.ray  # noqa: E402 - Ray's stand-in goes before

for check in [
    ray_is_told_what_was_asked_for,
    a_configuration_of_ray_serve_says_the_same,
    replicas_are_servers_and_all_are_found,
    a_server_has_cores_that_no_other_replica_has,
    a_server_sees_the_gpus_that_ray_gave,
    a_server_that_is_dead_frozen_or_leaving_is_not_healthy,
    a_replica_that_ends_drains_first,
    a_replica_that_does_not_start_says_why,
    an_address_is_one_that_others_can_reach,
    readiness_is_asked_over_tls_too,
    balancers_and_prometheus_get_what_they_read,
    ray_s_proxy_tells_where_the_servers_are,
    a_balancer_takes_turns,
    a_balancer_asks_the_next_one_where_one_fails,
    a_balancer_follows_what_comes_and_goes,
]:
    more = check()
    print("ok", check.__name__, more or "", flush=True)

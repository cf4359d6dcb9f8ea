"""Servers on a Ray cluster: Ray Serve places them and keeps them alive, and clients ask them directly.

>>> import deuteron.ray
>>> from ray import serve
>>> serve.run(deuteron.ray.deployment("/srv/models", num_replicas=3))
>>> [endpoint.http for endpoint in deuteron.ray.endpoints()]
['10.0.0.4:41233', '10.0.0.5:38117', '10.0.0.6:40975']

Each replica of the deployment starts one server on its node. No request goes through Ray's proxy, whose hop takes many times
longer than the server itself: clients connect to the endpoints (:class:`Balancer`), or a HAProxy in front of them does. The
proxy only tells where the servers are, as JSON, and under ``/haproxy`` and ``/prometheus`` in the forms of these.

It needs Ray: ``pip install 'deuteron[ray]'``, on every node of the cluster.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import logging
import os
import socket
import ssl
import threading
import time
import urllib.error
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar, Union

from ._server import PORTS, Server, ServerError, StrPath

try:
    import ray
    from ray import serve
    from ray.serve.exceptions import DeploymentUnavailableError
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"deuteron.ray needs Ray Serve ({error}): pip install 'deuteron[ray]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle
    from starlette.requests import Request

__all__ = ["Balancer", "Endpoint", "app_builder", "deployment", "endpoints", "haproxy_backend", "prometheus_targets"]

T = TypeVar("T")

#: Seconds that a server may take to say whether it is ready.
READY_SECONDS = 2.0
#: Seconds that the end of a server may take beyond its own ``--exit-timeout-secs``.
END_SECONDS = 5
#: Seconds between two looks for servers where none is left.
PAUSE_SECONDS = 0.1

_log = logging.getLogger("ray.serve")


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Addresses of one server. They are ``HOST:PORT``, ``None`` for a port that is not served."""

    #: Ray's name of the replica.
    replica: str
    #: Ray's id of the node.
    node: str
    #: The server's process on that node.
    pid: int
    http: Optional[str]
    grpc: Optional[str]
    metrics: Optional[str]


def deployment(
    models: Union[StrPath, Sequence[StrPath]],
    *,
    num_replicas: int = 1,
    args: Sequence[str] = (),
    env: Optional[Dict[str, str]] = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    drain_delay: int = 5,
    exit_timeout: int = 30,
    start_timeout: float = 300.0,
    name: str = "deuteron",
    **options: Any,
) -> serve.Application:
    """An application for ``serve.run``: servers of ``models``, each as a replica that Ray places and keeps alive.

    ``models``, ``args`` and ``env`` are those of :class:`deuteron.Server`; paths are those of the nodes. Each server listens on
    the address of its node and on free ports, where ``args`` says nothing else.

    A replica is placed where ``num_cpus`` and ``num_gpus`` are free. Its server runs on that many cores, which no other
    replica on the machine has; less than one core, or more than are free, leaves it all cores. It sees the GPUs that Ray
    gives (``CUDA_VISIBLE_DEVICES``).

    Ray asks each server every second whether it is ready, and replaces a server that has ended or is not ready three times.
    A replica that is to end says first that it is not ready and serves on for ``drain_delay`` seconds, then answers what it
    has, for ``exit_timeout`` seconds at most. ``start_timeout`` is how many seconds the models may take to load.

    ``options`` are more of ``serve.deployment``, such as ``max_replicas_per_node=1`` or ``health_check_period_s=5``.
    """
    actor = {"num_cpus": num_cpus, "num_gpus": num_gpus, **options.pop("ray_actor_options", {})}
    settings: Dict[str, Any] = {
        "health_check_period_s": 1.0,
        # The server's own answer, and Ray's way to it on a busy node.
        "health_check_timeout_s": READY_SECONDS + 3.0,
        # No request goes through the replica that Ray would have to wait for.
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": float(drain_delay + exit_timeout + 2 * END_SECONDS),
        **options,
    }
    flags = [f"--drain-delay={drain_delay}", f"--exit-timeout-secs={exit_timeout}", *args]
    placed = serve.deployment(name=name, num_replicas=num_replicas, ray_actor_options=actor, **settings)(_Replica)
    return placed.bind(
        models=models, args=flags, env=dict(env or {}), cores=int(actor["num_cpus"]), start_timeout=start_timeout,
        stop_timeout=float(drain_delay + exit_timeout + END_SECONDS),
    )


def app_builder(options: Dict[str, Any]) -> serve.Application:
    """:func:`deployment` for a configuration of Ray Serve: ``import_path: deuteron.ray:app_builder``.

    ``options`` are its arguments. ``serve run`` passes texts: what is a number or a list in JSON is taken as such.
    """

    def value(given: Any) -> Any:
        try:
            return json.loads(given) if isinstance(given, str) else given
        except ValueError:
            return given

    return deployment(**{name: value(given) for name, given in options.items()})


def endpoints(app: Union[str, DeploymentHandle] = "default", *, timeout: float = 5.0) -> List[Endpoint]:
    """The endpoints of an application's ready servers.

    ``app`` is the name that ``serve.run`` was given, or the handle that another deployment of the application was bound with.
    A replica that does not answer in ``timeout`` seconds is left out.
    """
    try:
        return _sorted(_handle(app).broadcast("endpoint").results(timeout_s=timeout, return_exceptions=True))
    except (DeploymentUnavailableError, TimeoutError):
        return []


def haproxy_backend(servers: Sequence[Endpoint], *, port: str = "http", name: str = "deuteron") -> str:
    """A section of HAProxy's configuration with these servers, for one of their ports.

    HAProxy looks at each server's readiness twice a second, and sends a request that a server did not answer, or answered
    with 503, to another one, if it fits into HAProxy's buffer (``tune.bufsize``, 16 KiB). A request with the header
    ``sequence-id`` is not sent twice, and stays with its server.
    """
    proto = " proto h2 check-proto h2" if port == "grpc" else ""
    lines = [
        f"backend {name}",
        "    mode http",
        "    balance leastconn",
        "    timeout connect 100ms",
        "    option httpchk",
        "    http-check send meth GET uri /v2/health/ready ver HTTP/1.1 hdr host deuteron",
        "    stick-table type string len 64 size 1m expire 60s",
        "    stick on req.hdr(sequence-id)",
        "    retries 3",
        "    option redispatch 1",
        "    retry-on conn-failure empty-response 503",
        # Without it only the head of a request is kept where that comes first, as from Python, and nothing can be sent again.
        "    option http-buffer-request",
        "    http-request disable-l7-retry if { req.hdr(sequence-id) -m found }",
        # Requests in flight at a server that is marked down go on: it may be draining.
        "    default-server check inter 500ms fall 2 rise 1",
    ]
    for server in servers:
        address = getattr(server, port)
        if address:
            # A name for each server and not for each place: HAProxy keeps counts and state by it.
            lines.append(f"    server {server.replica} {address}{proto}")
    return "\n".join(lines) + "\n"


def prometheus_targets(servers: Sequence[Endpoint]) -> List[Dict[str, Any]]:
    """The servers as Prometheus takes them, from a URL (``http_sd_configs``) or a file (``file_sd_configs``)."""
    return [
        {"targets": [server.metrics], "labels": {"ray_replica": server.replica, "ray_node": server.node}}
        for server in servers
        if server.metrics
    ]


class Balancer:
    """Asks the servers of an application in turns, and the next one where one fails. Threads may share it.

    >>> balancer = deuteron.ray.Balancer()
    >>> def ask(address):
    ...     return urllib.request.urlopen(f"http://{address}/v2/models/digits/infer", body).read()
    >>> balancer.call(ask)

    ``app`` is that of :func:`endpoints`, which is asked again every ``refresh`` seconds of use and when no server is left:
    fewer than ``drain_delay``, so that servers that are to end are left in time. ``port`` is ``http``, ``grpc`` or ``metrics``.
    """

    def __init__(self, app: Union[str, DeploymentHandle] = "default", *, port: str = "http", refresh: float = 2.0) -> None:
        if port not in PORTS:
            raise ValueError(f"{port!r}: expected one of {', '.join(PORTS)}")
        self._handle = _handle(app)
        self._port = port
        self._refresh = refresh
        self._lock = threading.Lock()
        self._addresses: List[str] = []
        self._turn = 0
        self._found_at = float("-inf")
        self._is_finding = False

    def call(
        self,
        ask: Callable[[str], T],
        *,
        retry_on: Tuple[Type[BaseException], ...] = (OSError, http.client.HTTPException),
        timeout: float = 30.0,
    ) -> T:
        """The result of ``ask`` for the ``HOST:PORT`` of a server.

        If it raises one of ``retry_on``, the next server is asked, until ``timeout`` seconds are over. An HTTP status is
        no reason for that, but for 503. The failed request may have run: not for sequences.
        """
        deadline = time.monotonic() + timeout
        failure: Optional[BaseException] = None
        while True:
            address = self._next()
            if address is not None:
                try:
                    return ask(address)
                except retry_on as error:
                    if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                        raise
                    failure = error
                    self._remove(address)
            if time.monotonic() >= deadline:
                raise failure or ConnectionError("the application has no server that is ready")
            if address is None:
                time.sleep(PAUSE_SECONDS)

    def _next(self) -> Optional[str]:
        """The address whose turn it is."""
        with self._lock:
            has_some = bool(self._addresses)
            # If all of them fail, the next search comes after a pause.
            is_due = time.monotonic() >= self._found_at + (self._refresh if has_some else PAUSE_SECONDS)
            finds = is_due and not self._is_finding
            self._is_finding |= finds
        if finds and has_some:
            # A node that has just died answers late: callers go on with the known servers.
            threading.Thread(target=self._find, name="deuteron endpoints", daemon=True).start()
        elif finds:
            self._find()
        with self._lock:
            if not self._addresses:
                return None
            self._turn += 1
            return self._addresses[self._turn % len(self._addresses)]

    def _find(self) -> None:
        """Asks Ray where the servers are. Those known stay where it fails: they serve on while Ray is out of order."""
        found: Optional[List[str]] = None
        try:
            found = [address for server in endpoints(self._handle) if (address := getattr(server, self._port))]
        except Exception as error:
            _log.warning("the servers cannot be asked for: %r", error)
        with self._lock:
            self._is_finding = False
            self._addresses = self._addresses if found is None else found
            self._found_at = time.monotonic()

    def _remove(self, address: str) -> None:
        """Leaves out a server that failed, until the servers are asked for again."""
        with self._lock:
            if address in self._addresses:
                self._addresses.remove(address)


class _Replica:
    """A replica of Ray Serve: one server on this node. Ray calls what has no underscore."""

    def __init__(
        self,
        models: Union[StrPath, Sequence[StrPath]],
        args: Sequence[str],
        env: Mapping[str, str],
        cores: int,
        start_timeout: float,
        stop_timeout: float,
    ) -> None:
        self._stop_timeout = stop_timeout
        self._host = ray.util.get_node_ip_address()
        flags = [f"--{port}-address={self._host}" for port in PORTS]
        allowed = os.sched_getaffinity(0)
        claimed, self._claims = _claim_cores(allowed, cores)
        if cores and not claimed:
            _log.warning("fewer than %d of %d cores are free for a server: it runs on all", cores, len(allowed))
        # The affinity is this thread's alone, and that of the process that it starts.
        os.sched_setaffinity(0, claimed or allowed)
        try:
            self._server = Server(models, args=[*flags, *args], env=dict(env), timeout=start_timeout)
        finally:
            os.sched_setaffinity(0, allowed)
        # Fails here and not every second where it can never be asked, as with TLS from a file of flags.
        self.check_health()

    def check_health(self) -> None:
        """Raises where the server has ended or is not ready: Ray then replaces the replica."""
        if not self._server.is_running:
            raise ServerError(f"{self._server!r}:\n" + "\n".join(self._server.log[-20:]))
        said = _why_not_ready(self._server)
        if said is not None:
            raise ServerError(f"{self._server!r} is not ready: {said}")

    def endpoint(self) -> Optional[Endpoint]:
        """The server's endpoint; ``None`` while it is not ready."""
        try:
            self.check_health()
        except ServerError:
            return None
        context = serve.get_replica_context()
        addresses = {name: self._address(name) for name in PORTS}
        return Endpoint(context.replica_tag, ray.get_runtime_context().get_node_id(), self._server.pid, **addresses)

    async def __call__(self, request: Request) -> Any:
        """The answer through Ray's proxy: the endpoints of all servers of the deployment."""
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        found = _sorted(await handle.broadcast("endpoint").results_async(timeout_s=5.0, return_exceptions=True))
        form = request.url.path.rstrip("/").rpartition("/")[2]
        if form == "haproxy":
            return haproxy_backend(found, port=request.query_params.get("port", "http"))
        if form == "prometheus":
            return prometheus_targets(found)
        return [dataclasses.asdict(server) for server in found]

    def __del__(self) -> None:
        """Ray calls it when the replica is to end, and waits."""
        # Neither is there where the replica did not start.
        server: Optional[Server] = getattr(self, "_server", None)
        if server is not None:
            server.stop(self._stop_timeout)
        for claim in getattr(self, "_claims", []):
            claim.close()

    def _address(self, name: str) -> Optional[str]:
        if name not in self._server.urls:
            return None
        host, _, port = self._server.address(name).rpartition(":")
        if host in ("0.0.0.0", "[::]"):
            host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{port}"


def _handle(app: Union[str, DeploymentHandle]) -> DeploymentHandle:
    return serve.get_app_handle(app) if isinstance(app, str) else app


def _sorted(answers: Sequence[Any]) -> List[Endpoint]:
    """The endpoints among what replicas answered, of which some are not ready or have failed."""
    return sorted((answer for answer in answers if isinstance(answer, Endpoint)), key=lambda server: server.replica)


def _why_not_ready(server: Server) -> Optional[str]:
    """The reason of a server that is not ready. All its ports tell it; one without TLS is preferred."""
    scheme, _, address = min(server.urls.values(), key=lambda url: url.startswith("https")).partition("://")
    connection: http.client.HTTPConnection
    if scheme == "https":
        # It is our own process: its certificate is for others, and need not name this address.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, timeout=READY_SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection(address, timeout=READY_SECONDS)
    try:
        connection.request("GET", "/v2/health/ready")
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
        return None if answer.status == 200 else f"{answer.status} {said}"
    except ssl.SSLError as error:
        # Every port wants a client's certificate, and says so: it lives, and more is not to be known.
        return None if "certificate" in str(error).lower() else str(error)
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()


def _claim_cores(allowed: Set[int], count: int) -> Tuple[Set[int], List[socket.socket]]:
    """Cores that no other replica on this machine has, and what holds them as long as this process; all or none.

    A core is held by an abstract Unix socket of its number: there is no file that could be left behind.
    """
    claims: Dict[int, socket.socket] = {}
    for core in sorted(allowed):
        if len(claims) == count:
            break
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0deuteron-core-{core}")
            claims[core] = claim
        except OSError:
            claim.close()
    if len(claims) == count:
        return set(claims), list(claims.values())
    for claim in claims.values():
        claim.close()
    return set(), []

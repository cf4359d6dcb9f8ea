"""A node: containers of a pod as the YAML has them, and what the kubelet does to them. Linux alone, no container runtime."""

import collections
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
#: The image: the program and its libraries.
ENTRYPOINT = "/usr/bin/deuteron"
USER_AGENT = "kube-probe/1.37"


class Failed(Exception):
    """A failure that a node, a probe or a client found."""


def wait_until(what, holds, seconds):
    """`what` is a text, or tells it at the end."""
    end = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > end:
            raise Failed(f"{what if isinstance(what, str) else what()}: not within {seconds} s")
        time.sleep(0.02)


class Image:
    """The contents of deploy/Containerfile: the program at its path, glibc's files and nothing else."""

    def __init__(self, binary, folder):
        self.binary, self.root = str(binary), folder / "image"
        linked = subprocess.run(["ldd", self.binary], check=True, capture_output=True, text=True).stdout
        for path in re.findall(r"(/\S+) \(0x", linked):
            target = self.root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        for name in ("proc", "sys", "dev", "etc"):
            (self.root / name).mkdir()
        (self.root / "etc/passwd").write_text("deuteron:x:65532:65532:deuteron:/:/\n")

    def copy(self, folder):
        shutil.copytree(self.root, folder, symlinks=True)
        program = folder / ENTRYPOINT.lstrip("/")
        program.parent.mkdir(parents=True)
        program.touch()
        os.chmod(folder, 0o755)


def expanded(text, variables):
    """$(NAME) where there is such a variable; $$(NAME) is $(NAME)."""

    def one(match):
        if match[0].startswith("$$"):
            return match[0][1:]
        return variables.get(match[1], match[0])

    return re.sub(r"\$?\$\(([-._a-zA-Z0-9]+)\)", one, text)


def service_links(services):
    """The variables that Kubernetes sets for the Services of a namespace: {name: {port name: port}}."""
    variables = {}
    for number, (service, ports) in enumerate(services.items()):
        name, address = service.upper().replace("-", "_"), f"10.96.0.{number + 1}"
        first = next(iter(ports.values()))
        variables |= {
            f"{name}_SERVICE_HOST": address,
            f"{name}_SERVICE_PORT": str(first),
            f"{name}_PORT": f"tcp://{address}:{first}",
        }
        for port_name, port in ports.items():
            prefix = f"{name}_PORT_{port}_TCP"
            variables[f"{name}_SERVICE_PORT_{port_name.upper().replace('-', '_')}"] = str(port)
            variables |= {prefix: f"tcp://{address}:{port}", f"{prefix}_PROTO": "tcp", f"{prefix}_PORT": str(port)}
            variables[f"{prefix}_ADDR"] = address
    return variables


#: Services of the pod's namespace: Deuteron's own, and some whose variables have the names of flags' variables.
SERVICES = {
    "kubernetes": {"https": 443},
    "deuteron": {"http": 8000, "grpc": 8001, "metrics": 8002},
    "deuteron-http": {"http": 80},
    "deuteron-grpc": {"grpc": 80},
    "deuteron-metrics": {"metrics": 80},
    "deuteron-headless": {"grpc": 8001},
    "deuteron-model-repository": {"http": 80},
    "digits-predictor": {"h2c": 80},
}


class Pod:
    """One container of a pod spec, with its volumes given as folders: {name: folder}."""

    def __init__(self, image, spec, volumes, name="digits-predictor-7d4b9c6f5-x2x4q", container=0):
        self.spec, self.name, self.container = spec, name, spec["containers"][container]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pod-", dir=image.root.parent))
        self.image, self.volumes = image, volumes
        self.grace = spec.get("terminationGracePeriodSeconds", 30)
        self.process = None

    def variables(self):
        variables = service_links(SERVICES) if self.spec.get("enableServiceLinks", True) else {}
        for entry in self.container.get("env", []):
            if "value" in entry:
                variables[entry["name"]] = expanded(entry["value"], variables)
            elif entry["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}:
                variables[entry["name"]] = self.name
            else:
                raise Failed(f"a variable from elsewhere: {entry}")
        return variables

    def start(self):
        root = self.folder / "root"
        if not root.exists():
            self.image.copy(root)
        mounts = [{"source": self.image.binary, "target": ENTRYPOINT, "read_only": True}]
        for entry in self.container.get("volumeMounts", []):
            source = pathlib.Path(self.volumes[entry["name"]]) / entry.get("subPath", "")
            target = root / entry["mountPath"].lstrip("/")
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            mounts.append(
                {"source": str(source), "target": entry["mountPath"], "read_only": entry.get("readOnly", False)}
            )
        variables = self.variables()
        arguments = [expanded(argument, variables) for argument in self.container["args"]]
        if "command" in self.container:
            raise Failed("the image's entry point is not what runs")
        container = {
            "root": str(root),
            "volumes": mounts,
            "security": {**self.spec.get("securityContext", {}), **self.container.get("securityContext", {})},
            "command": [ENTRYPOINT, *arguments],
            "environment": {"PATH": "/usr/bin", "HOSTNAME": self.name, **variables},
            "is_root": os.environ.get("CONTRACT_IS_ROOT") == "1",
        }
        (self.folder / "container.json").write_text(json.dumps(container))
        launch = [
            "unshare",
            "--mount",
            "--",
            sys.executable,
            "-B",
            str(HERE / "launch.py"),
            str(self.folder / "container.json"),
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(launch, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started = time.monotonic()

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def port(self, port):
        """The number of a port that is named or numbered."""
        if isinstance(port, int):
            return port
        return next(entry["containerPort"] for entry in self.container["ports"] if entry["name"] == port)

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def written(self):
        """Files of its root that the image does not have, and volumes are not mounted at."""
        mounted = {entry["mountPath"] for entry in self.container.get("volumeMounts", [])}
        found = []
        for path in (self.folder / "root").rglob("*"):
            inside = "/" + str(path.relative_to(self.folder / "root"))
            is_of_image = (self.image.root / inside.lstrip("/")).exists() or inside in ("/usr", "/usr/bin", ENTRYPOINT)
            if not is_of_image and not any(f"{target}/".startswith(f"{inside}/") for target in mounted):
                found.append(inside)
        return found


Probed = collections.namedtuple("Probed", "is_well text")


def probe(pod, action, timeout):
    """httpGet, as the kubelet does it: a connection of its own, any certificate, 200 to 399 is well."""
    if set(action) - {"httpGet"}:
        raise Failed(f"only httpGet is played: {action}")
    get = action["httpGet"]
    port = pod.port(get["port"])
    if get.get("scheme", "HTTP") == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"User-Agent": USER_AGENT, "Accept": "*/*", "Connection": "close"}
    headers |= {entry["name"]: entry["value"] for entry in get.get("httpHeaders", [])}
    try:
        connection.request("GET", get["path"], headers=headers)
        reply = connection.getresponse()
        return Probed(200 <= reply.status < 400, f"{reply.status} {reply.read().decode()}")
    except (OSError, http.client.HTTPException) as error:
        return Probed(False, repr(error))
    finally:
        connection.close()


class Probe(threading.Thread):
    """A probe of a container, again and again as its fields say. `is_well` changes at the thresholds alone."""

    def __init__(self, pod, name):
        super().__init__(daemon=True)
        self.pod, self.fields = pod, dict(pod.container[name])
        self.action = {
            name: value for name, value in self.fields.items() if name in ("httpGet", "grpc", "exec", "tcpSocket")
        }
        self.period, self.timeout = self.fields.get("periodSeconds", 10), self.fields.get("timeoutSeconds", 1)
        self.success, self.failure = self.fields.get("successThreshold", 1), self.fields.get("failureThreshold", 3)
        # Liveness is presumed, readiness and start are not.
        self.is_well = name == "livenessProbe"
        self.last = Probed(False, "not asked")
        self.runs, self.failures, self.has_failed, self.is_over = 0, 0, False, threading.Event()

    def run(self):
        time.sleep(self.fields.get("initialDelaySeconds", 0))
        row, of = 0, None
        while not self.is_over.is_set():
            self.last = probe(self.pod, self.action, self.timeout)
            row, of = (row + 1, of) if of == self.last.is_well else (1, self.last.is_well)
            self.runs += 1
            self.failures += not of
            if of and row >= self.success:
                self.is_well = True
            if not of and row >= self.failure:
                self.is_well, self.has_failed = False, True
            self.is_over.wait(self.period)


class Kubelet:
    """Starts a pod and looks after it: startup first, then readiness and liveness."""

    def __init__(self, pod):
        self.pod, self.probes = pod, {}

    def start(self):
        """Returns the seconds from the start until it is ready."""
        self.pod.start()
        self.await_probe("startupProbe").is_over.set()
        self.probes["livenessProbe"] = Probe(self.pod, "livenessProbe")
        self.probes["livenessProbe"].start()
        self.await_probe("readinessProbe")
        return time.monotonic() - self.pod.started

    def await_probe(self, name):
        one = self.probes[name] = Probe(self.pod, name)
        one.start()

        def holds():
            if self.pod.process.poll() is not None:
                raise Failed(f"the container ended with {self.pod.process.returncode}: {self.pod.log()[-1500:]}")
            if one.has_failed:
                raise Failed(f"{name}: {one.last.text}")
            return one.is_well

        wait_until(lambda: f"{name}: {one.last.text}", holds, 30)
        return one

    def terminate(self, when=lambda seconds: None):
        """As a pod is deleted: the hook, SIGTERM, and SIGKILL when the grace period is over. Returns the exit status and the
        seconds it took. `when` is told how long it takes, again and again."""
        begun = time.monotonic()
        hook = self.pod.container.get("lifecycle", {}).get("preStop")
        if hook:
            if set(hook) != {"sleep"}:
                raise Failed(f"only sleep is played: {hook}")
            time.sleep(hook["sleep"]["seconds"])
        self.pod.process.send_signal(signal.SIGTERM)
        for one in self.probes.values():
            one.is_over.set()
        while self.pod.process.poll() is None:
            seconds = time.monotonic() - begun
            when(seconds)
            if seconds > self.pod.grace:
                self.pod.kill()
                raise Failed(f"killed after {self.pod.grace} s")
            time.sleep(0.01)
        return self.pod.process.returncode, time.monotonic() - begun

    def kill(self):
        for one in self.probes.values():
            one.is_over.set()
        self.pod.kill()


def mount_changing_files(folder, files, mode=0o440, group=None):
    """A ConfigMap or a Secret as the kubelet mounts it: files are links through `..data`, which is swapped at once."""
    version = pathlib.Path(tempfile.mkdtemp(prefix="..", dir=folder))
    os.chmod(version, 0o755)
    for name, text in files.items():
        (version / name).write_text(text)
        os.chmod(version / name, mode)
        if group is not None and os.environ.get("CONTRACT_IS_ROOT") == "1":
            os.chown(version / name, 0, group)
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(version.name)
    os.replace(folder / "..data_tmp", folder / "..data")

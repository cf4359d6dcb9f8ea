"""A server that lives as long as a ``with`` block."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import threading
import time
from typing import Deque, Dict, List, Mapping, Optional, Sequence, TextIO, Union

from ._binary import environment, find_binary

StrPath = Union[str, "os.PathLike[str]"]

#: Lines of the log that are kept for :attr:`Server.log`.
LOG_LINES = 1000
#: Those that a server listens on.
PORTS = ("http", "grpc", "metrics")


class ServerError(RuntimeError):
    """The server did not start, or has ended; the text has its last lines."""


def _has_tls(port: str, args: Sequence[str], variables: Mapping[str, str]) -> bool:
    """True if a port has TLS by flags and variables: the server does not report it. A file of flags is not read."""
    has = False
    for name in (f"{port}-use-ssl", f"{port}-use-ssl-mutual"):
        value = variables.get("DEUTERON_" + name.replace("-", "_").upper(), "")
        for index, arg in enumerate(args):
            flag, equals, rest = arg.partition("=")
            # The last one counts; its value may be an argument of its own.
            if flag == f"--{name}":
                value = rest if equals else "".join(args[index + 1:index + 2])
        has = has or value.lower() in ("true", "1")
    return has


class Server:
    """Serves models on free ports of this machine; ready when it returns.

    ``models`` is a directory of models, a model's own directory or an ONNX file, or several of them. ``args`` are flags as on
    the command line (``deuteron serve --help``), and go before those that are set here. ``timeout`` is how many seconds the
    models may take to load.

    >>> with Server("model.onnx", args=["--shards=1"]) as server:
    ...     client = tritonclient.http.InferenceServerClient(server.address("http"))

    The server ends with the block, and with this process if that is killed.
    """

    def __init__(
        self,
        models: Union[StrPath, Sequence[StrPath]],
        *,
        args: Sequence[str] = (),
        env: Optional[Dict[str, str]] = None,
        timeout: float = 60.0,
    ) -> None:
        paths = [models] if isinstance(models, (str, os.PathLike)) else list(models)
        program = find_binary()
        flags = [f"--{name}-port=0" for name in PORTS]
        flags += [f"--{name}-address=127.0.0.1" for name in PORTS]
        flags += ["--exit-with-stdin=true", *args, *(os.fspath(path) for path in paths)]
        variables = {**environment(), **(env or {})}
        self._secure = {name for name in PORTS if _has_tls(name, args, variables)}
        self._log: Deque[str] = collections.deque(maxlen=LOG_LINES)
        self._reader = threading.Thread(target=self._read_log, name="deuteron log", daemon=True)
        ready, told = os.pipe()
        with os.fdopen(ready) as lines:
            try:
                # In a session of its own: an interrupt of a notebook's cell is for the cell's code, and not for the
                # server.
                self._process = subprocess.Popen(
                    [program, "serve", f"--ready-file=/dev/fd/{told}", *flags], env=variables, stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[told], text=True, errors="replace",
                    start_new_session=True,
                )
            finally:
                os.close(told)
            try:
                said = json.loads(self._wait_until_ready(lines, timeout))
            except BaseException:
                # Also on an interrupt: the caller does not have this object yet, so only this code can end the process.
                self._process.kill()
                self.stop()
                raise
        #: The process.
        self.pid: int = said.pop("pid")
        self._addresses: Dict[str, str] = said

    def _wait_until_ready(self, lines: TextIO, timeout: float) -> str:
        """The line that a server writes when it is ready."""
        self._reader.start()
        # Ends the wait below: the pipe ends with the process.
        clock = threading.Timer(timeout, self._process.kill)
        clock.daemon = True
        begun = time.monotonic()
        clock.start()
        try:
            line = lines.readline()
            # Also where the kill comes only now, behind the line.
            is_late = time.monotonic() - begun >= timeout
        finally:
            clock.cancel()
        if not line or is_late:
            code = self.stop()
            why = f"was not ready after {timeout:g} s" if is_late else f"ended with {code}"
            raise ServerError(f"the server {why}:\n" + "\n".join(self.log[-20:]))
        return line

    @property
    def urls(self) -> Dict[str, str]:
        """``http://HOST:PORT`` of ``http``, ``grpc`` and ``metrics``, those that are served.

        ``https`` where ``args`` or variables ask for TLS; a file of flags (``--config``) is not looked into.
        """
        schemes = {name: "https" if name in self._secure else "http" for name in self._addresses}
        return {name: f"{schemes[name]}://{address}" for name, address in self._addresses.items()}

    def address(self, name: str = "http") -> str:
        """``HOST:PORT`` of ``http``, ``grpc`` or ``metrics``, as ``tritonclient`` wants it."""
        return self._addresses[name]

    @property
    def log(self) -> List[str]:
        """The last lines of the log, the oldest first."""
        return list(self._log)

    @property
    def is_running(self) -> bool:
        """True if the process lives."""
        return self._process.poll() is None

    def stop(self, timeout: float = 35.0) -> int:
        """Drains the server and waits for its end; returns its exit code, negative for a signal."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        if self._reader.ident is not None:
            self._reader.join(5.0)
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.is_running else f"ended with {self._process.returncode}"
        return f"<deuteron.Server {self._addresses.get('http', '')} {state}>"

    def _read_log(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                self._log.append(line.rstrip("\n"))

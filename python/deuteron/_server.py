"""A server that lives as long as a ``with`` block."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import threading
from typing import Deque, Dict, List, Optional, Sequence, Union

from ._binary import environment, find_binary

StrPath = Union[str, "os.PathLike[str]"]

#: Lines of the log that are kept for :attr:`Server.log`.
LOG_LINES = 1000


class ServerError(RuntimeError):
    """The server did not start, or has ended; the text has its last lines."""


def _uses_tls(name: str, word: str) -> bool:
    flag, _, value = word.partition("=")
    return flag in (f"--{name}-use-ssl", f"--{name}-use-ssl-mutual") and value.lower() in ("true", "1")


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
        self._log: Deque[str] = collections.deque(maxlen=LOG_LINES)
        program = find_binary()
        variables = {**environment(), **(env or {})}
        ready, told = os.pipe()
        own = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
        own += [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]
        own += [f"--ready-file=/dev/fd/{told}", "--exit-with-stdin=true"]
        command = [program, "serve", *own, *args, *(os.fspath(path) for path in paths)]
        self._secure = {name for name in ("http", "grpc", "metrics") if any(_uses_tls(name, word) for word in args)}
        try:
            # In a group of its own: who interrupts a cell of a notebook means what runs there, and not the server.
            self._process = subprocess.Popen(
                command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[told], text=True, errors="replace", start_new_session=True,
            )
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(told)
        self._reader = threading.Thread(target=self._read_log, name="deuteron log", daemon=True)
        self._reader.start()
        # Ends the wait below: the pipe ends with the process.
        clock = threading.Timer(timeout, self._process.kill)
        clock.daemon = True
        clock.start()
        try:
            with os.fdopen(ready) as lines:
                line = lines.readline()
        except BaseException:
            self._process.kill()
            self.stop()
            raise
        finally:
            has_time = clock.is_alive()
            clock.cancel()
        if not line:
            code = self.stop()
            why = f"ended with {code}" if has_time else f"was not ready after {timeout:g} s"
            raise ServerError(f"the server {why}:\n" + "\n".join(self.log[-20:]))
        told_of = json.loads(line)
        #: The process.
        self.pid: int = told_of.pop("pid")
        self._addresses: Dict[str, str] = told_of

    @property
    def urls(self) -> Dict[str, str]:
        """``http://HOST:PORT`` of ``http``, ``grpc`` and ``metrics``, those that are served; ``https`` with TLS by ``args``."""
        scheme = {name: "https" if name in self._secure else "http" for name in self._addresses}
        return {name: f"{scheme[name]}://{address}" for name, address in self._addresses.items()}

    def address(self, name: str = "http") -> str:
        """``HOST:PORT`` of ``http``, ``grpc`` or ``metrics``, as ``tritonclient`` wants it."""
        return self._addresses[name]

    @property
    def log(self) -> List[str]:
        """The last lines of the log, the oldest first."""
        return list(self._log)

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
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

"""Load on a server, and what came of it as a table."""

from __future__ import annotations

import dataclasses
import html
import json
import subprocess
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

from ._binary import environment, find_binary
from ._server import Server


@dataclasses.dataclass(frozen=True)
class BenchRow:
    """One step of the load. Times are in microseconds."""

    concurrency: Optional[int]
    request_rate: Optional[float]
    throughput: float
    failed: int
    p50_us: float
    p90_us: float
    p99_us: float
    mean_us: float
    #: CPU time of the server for each request, where it runs on this machine and :func:`bench` knows its process.
    cpu_per_request_us: Optional[float]
    #: All that ``deuteron bench --format json`` says.
    all: Dict[str, Any] = dataclasses.field(repr=False, compare=False)


class BenchResult(Sequence[BenchRow]):
    """The steps of a run. Prints as a table, in a notebook too; ``to_dicts()`` is for pandas."""

    _HEADS = ("concurrency", "rate", "infer/s", "failed", "p50 µs", "p90 µs", "p99 µs", "mean µs", "CPU µs/req")

    def __init__(self, rows: Sequence[BenchRow]) -> None:
        self._rows = list(rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[BenchRow]:
        return iter(self._rows)

    def to_dicts(self) -> List[Dict[str, Any]]:
        """Each step with all that the program says of it."""
        return [dict(row.all) for row in self._rows]

    def _cells(self) -> List[List[str]]:
        def text(value: Optional[float], digits: int = 1) -> str:
            return "" if value is None else f"{value:.{digits}f}"

        return [
            [
                text(row.concurrency, 0), text(row.request_rate, 0), text(row.throughput, 0), str(row.failed),
                text(row.p50_us), text(row.p90_us), text(row.p99_us), text(row.mean_us), text(row.cpu_per_request_us),
            ]
            for row in self._rows
        ]

    def __repr__(self) -> str:
        rows = [list(self._HEADS), *self._cells()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self._HEADS))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows)

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        return f"<table>{row(self._HEADS, 'th')}{''.join(row(cells, 'td') for cells in self._cells())}</table>"


def bench(
    server: Union[Server, str],
    model: str,
    *,
    protocol: str = "http",
    concurrency: Union[int, str] = "1:16:x4",
    args: Sequence[str] = (),
) -> BenchResult:
    """Puts load on a server, a :class:`Server` or ``HOST:PORT``, and returns what came of it.

    ``concurrency`` is a number or ``START:END:STEP``; ``args`` are more flags of ``deuteron bench``, such as
    ``["--rate=1000"]``. Raises :class:`RuntimeError` with the reason where no request succeeds.
    """
    command = [find_binary(), "bench", "-m", model, "-i", protocol, "--format=json"]
    if isinstance(server, Server):
        command += ["-u", server.address(protocol), f"--pid={server.pid}"]
    else:
        command += ["-u", server]
    if not any(arg.startswith(("--request-rate-range", "--rate", "--search-slo")) for arg in args):
        command.append(f"--concurrency-range={concurrency}")
    done = subprocess.run([*command, *args], capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command[1:])}` failed: {done.stderr.strip()}")
    rows = []
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        rows.append(
            BenchRow(
                concurrency=said["concurrency"],
                request_rate=said["request_rate"],
                throughput=said["throughput"],
                failed=said["failed"],
                p50_us=said["latency_p50_us"],
                p90_us=said["latency_p90_us"],
                p99_us=said["latency_p99_us"],
                mean_us=said["latency_mean_us"],
                cpu_per_request_us=said["cpu_per_request_us"],
                all=said,
            )
        )
    return BenchResult(rows)

"""Deuteron, an inference server for models that are not LLMs, from Python: a server for a test or a notebook, and load on one.

>>> import deuteron
>>> with deuteron.Server("models") as server:
...     server.urls["http"]
'http://127.0.0.1:41233'

The program itself is the command ``deuteron``, or ``python -m deuteron``. Clients are those of Triton (``tritonclient``) or
plain HTTP; nothing here is needed to ask a server.
"""

from ._bench import BenchResult, BenchRow, bench
from ._binary import find_binary
from ._server import Server, ServerError

__all__ = ["BenchResult", "BenchRow", "Server", "ServerError", "bench", "find_binary"]

"""Tests of the process of a Python model, `crates/process/src/python/worker`, against a server in Python (`worker/server.py`).

Run with any Python that has numpy: `python tests/python/worker_test.py [Class[.test]…]`. `WORKER_PYTHON` names the
interpreter of the process if it is to be another one. The texts that are compared are Triton's.
"""

import unittest

from worker.calls import Calls
from worker.control import Complete, Control
from worker.imports import Imports
from worker.life import Life
from worker.memory import Memory
from worker.overlap import Overlap
from worker.placed import Placed
from worker.requests import Log, Requests
from worker.returns import Returns
from worker.senders import Senders
from worker.templates import Templates
from worker.tensors import Tensors
from worker.threads import Threads
from worker.watch import Watch

__all__ = [
    "Calls",
    "Complete",
    "Control",
    "Imports",
    "Life",
    "Log",
    "Memory",
    "Overlap",
    "Placed",
    "Requests",
    "Returns",
    "Senders",
    "Templates",
    "Tensors",
    "Threads",
    "Watch",
]

if __name__ == "__main__":
    unittest.main()

"""The threads of sessions of ONNX Runtime that say nothing of them, with a package that stands in for it."""

import os
import subprocess
import sys
import tempfile
import unittest

SOURCES = os.path.join(os.path.dirname(__file__), "../../../crates/process/src/python/worker")
PACKAGE = """
class SessionOptions:
    def __init__(self):
        self.intra_op_num_threads = 0
        self.use_per_session_threads = True


class InferenceSession:
    '''A session.'''

    def __init__(self, path_or_bytes, sess_options=None, providers=None, **kwargs):
        options = sess_options or SessionOptions()
        self.told = [path_or_bytes, options.intra_op_num_threads, providers, sorted(kwargs)]
"""
PROGRAM = """
import os, sys
os.cpu_count = lambda: 4
import deuteron_threads
deuteron_threads.limit(COUNT)
before = list(sys.meta_path)
import onnxruntime as ort
from onnxruntime import InferenceSession, SessionOptions

def options(**set):
    made = SessionOptions()
    for name, value in set.items():
        setattr(made, name, value)
    return made

class Own(InferenceSession):
    pass

print(InferenceSession("a").told)
print(InferenceSession("a", options(), ["CPU"], disabled=1).told)
print(InferenceSession("a", sess_options=options(intra_op_num_threads=3)).told)
print(InferenceSession("a", options(use_per_session_threads=False)).told)
print(Own("a").told)
print(InferenceSession.__init__.__doc__, type(ort.__loader__).__name__, ort.__spec__.loader is ort.__loader__)
"""


class Threads(unittest.TestCase):
    """Changes by `deuteron_threads`, and their absence elsewhere."""

    def told(self, count, package=PACKAGE, program=PROGRAM):
        with tempfile.TemporaryDirectory() as folder:
            if package is not None:
                with open(os.path.join(folder, "onnxruntime.py"), "w") as file:
                    file.write(package)
            path = os.pathsep.join([folder, SOURCES])
            environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
            line = [sys.executable, "-c", program.replace("COUNT", str(count))]
            done = subprocess.run(line, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_sessions_without_a_number_get_that_of_the_process(self):
        told = self.told(2)
        self.assertEqual(told[0], "['a', 2, None, []]")
        self.assertEqual(told[1], "['a', 2, ['CPU'], ['disabled']]")
        self.assertEqual(told[2], "['a', 3, None, []]", "the model's own")
        self.assertEqual(told[3], "['a', 0, None, []]", "the threads of all sessions")
        self.assertEqual(told[4], "['a', 2, None, []]", "of a subclass")
        self.assertEqual(told[5], "None SourceFileLoader True")

    def test_with_all_cores_of_the_machine_nothing_changes(self):
        for count in ("4", "5", "None", "0"):
            self.assertEqual(self.told(count)[0], "['a', 0, None, []]", count)

    def test_a_package_that_is_built_otherwise_stays_as_it_is(self):
        program = "import deuteron_threads\ndeuteron_threads.os.cpu_count = lambda: 4\ndeuteron_threads.limit(1)\n"
        self.assertEqual(self.told(1, "x = 1\n", program + "import onnxruntime\nprint(onnxruntime.x)"), ["1"])
        missing = program + "try:\n    import onnxruntime.none\nexcept ImportError:\n    print('missing')"
        self.assertEqual(self.told(1, "", missing), ["missing"])

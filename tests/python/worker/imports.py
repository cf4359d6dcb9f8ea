"""The place and the import of a model."""

import json
import os
import shutil
import tempfile

import numpy as np

import worker.server as ws
from worker.case import IDENTITY, WorkerTest, X, model


class Imports(WorkerTest):
    """The place and the import of a model."""

    def test_the_module_has_tritons_name_and_finds_its_neighbours(self):
        source = model(
            """
def execute(self, requests):
    facts = [__name__, __file__, __package__, first.NAME, second.NAME, os.getcwd(), sys.argv, sys.path[-3:-1]]
    text = np.array([json.dumps(facts).encode()], object)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])]
"""
        )
        source = "from .first import NAME\nfrom . import first\nimport second\n" + source
        files = [("first.py", "NAME = __name__"), ("second.py", "NAME = __name__")]
        server = self.serve(source, "IN:FP32", "OUT:BYTES", files)
        facts = json.loads(server.ask({"IN": X})["OUT"][0])
        path = server.version
        wanted = [
            "1.model",
            path + "/model.py",
            "1",
            "1.first",
            "second",
            os.getcwd(),
            [""],
            [path, os.path.dirname(path)],
        ]
        self.assertEqual(facts, wanted)

    def test_a_file_of_another_name(self):
        server = self.serve(IDENTITY, name="other.py")
        np.testing.assert_array_equal(server.ask({"IN": X})["OUT"], X)

    def test_the_file_is_not_taken_from_elsewhere(self):
        # The working directory is on the path of Python, and may have a directory `1` of its own.
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        os.makedirs(folder + "/1")
        with open(folder + "/1/model.py", "w") as file:
            file.write("raise ValueError('the wrong model')")
        before = os.getcwd()
        os.chdir(folder)
        try:
            server = self.serve(IDENTITY)
        finally:
            os.chdir(before)
        np.testing.assert_array_equal(server.ask({"IN": X})["OUT"], X)

    def test_a_version_directory_may_be_a_package(self):
        source = "from . import VALUE\n" + model("def initialize(self, args): print(VALUE)")
        server = self.serve(source, files=[("__init__.py", "VALUE = 'of the package'")])
        self.assertEqual(server.finalize()[0], "of the package\n")

    def test_a_python_based_backend_is_imported_as_model(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        with open(folder + "/model.py", "w") as file:
            file.write(
                "import part\n"
                + model("def initialize(self, args): print(__name__, part.VALUE, pb_utils.get_model_dir())")
            )
        with open(folder + "/part.py", "w") as file:
            file.write("VALUE = 7")
        server = self.serve(
            None, model_file=folder + "/model.py", module_name="model", backend_directory=folder, files=[("data", "")]
        )
        self.assertEqual(server.finalize()[0], "model 7 " + server.version + "\n")

    def check_refused(self, source, wanted, **options):
        server = self.serve(source, start=False, **options)
        text = server.expect("main", ws.FAILED).str32()
        self.assertEqual(text.replace(server.version, "DIR"), wanted)

    def test_a_missing_file_is_refused(self):
        self.check_refused(None, "Python model file not found in 'DIR/model.py'")

    def test_a_file_that_is_no_python_is_refused(self):
        self.check_refused("", "Model name must end with '.py'. Model name is \"model.txt\".", name="model.txt")

    def test_a_missing_class_is_refused(self):
        self.check_refused("", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'")

    def test_an_import_that_fails_is_told_with_its_frames(self):
        server = self.serve("import no_such_module_at_all", start=False)
        text = server.expect("main", ws.FAILED).str32().replace(server.version, "DIR")
        head = "ModuleNotFoundError: No module named 'no_such_module_at_all'\n\nAt:\n  DIR/model.py(1): <module>\n  <frozen "
        self.assertTrue(text.startswith(head), text)
        self.assertNotIn("deuteron", text)
        self.assertTrue(text.endswith(": _find_and_load\n"), text)

    def test_the_native_half_can_be_imported(self):
        server = self.evaluator()
        code = "import c_python_backend_utils as c\n[getattr(c, n) is getattr(pb, n) for n in %r]"
        names = [
            "Tensor",
            "InferenceRequest",
            "InferenceResponse",
            "MetricFamily",
            "load_model",
            "TritonError",
            "Logger",
        ]
        self.assertEqual(self.evaluate(server, code % names), str([True] * len(names)))
        self.assertEqual(
            self.evaluate(server, "pb.np, pb.json, pb.struct"),
            self.evaluate(server, "import numpy, json, struct\nnumpy, json, struct"),
        )
        self.assertEqual(self.evaluate(server, "[n for n in pb.__all__ if not hasattr(pb, n)]"), "[]")
        self.assertEqual(
            self.evaluate(server, "pb.nothing"),
            ("AttributeError: module 'triton_python_backend_utils' has no attribute 'nothing'"),
        )

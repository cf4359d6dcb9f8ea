"""Templates: processes that have imported their model and fork those of its instances."""

import array
import copy
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import time

import worker.server as ws
from worker.case import EVALUATE, IMPORTS, WorkerTest

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 2, 36

# The variable with the id of this process, which takes the place of the server.
LIBC = ctypes.CDLL(None)

# Numbers of all generators that the model can reach, drawn in `initialize`.
DRAWS = IMPORTS + """
import random
GENERATORS = []
{seeds}
class TritonPythonModel:
    def initialize(self, args):
        print(random.random(), np.random.random(), *(each.random() for each in GENERATORS))

    def execute(self, requests):
        return [None] * len(requests)
"""


class ForkedProcess:
    """A process that a template forked: as `subprocess.Popen`, as far as a test needs it."""

    def __init__(self, pid, stdout, stderr):
        self.pid, self.stdout, self.stderr, self.returncode = pid, open(stdout, "rb"), open(stderr, "rb"), None

    def wait(self, timeout=20):
        """Its status, as a child of this process."""
        end = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            elif time.monotonic() > end:
                raise subprocess.TimeoutExpired("it", timeout)
            else:
                time.sleep(0.005)
        return self.returncode

    def communicate(self, timeout=20):
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


class Template(ws.Server):
    """A server with a template."""

    def __init__(self, model, config=None, **settings):
        super().__init__(model, config, start=False, mode="template", **settings)
        self.reason = self.expect("main", ws.COMPLETED).str32()

    def begin(self):
        super().begin()
        self.answers[ws.METRIC_FAMILY] = lambda reader: self.reply(reader.take("Q"), 1)

    def begin_fork(self):
        """Orders an instance. Returns its connection, without a process yet."""
        other = copy.copy(self)
        (other.main, main), (other.aux, aux) = socket.socketpair(), socket.socketpair()
        other.main.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        other.request_regions, other.response_regions = {0: ws.Region(1 << 20)}, {0: ws.Region(1 << 20)}
        other.pipes = [os.pipe(), os.pipe()]
        files = [main.fileno(), aux.fileno(), other.request_regions[0].fd, other.response_regions[0].fd]
        files += [end for _, end in other.pipes]
        order = struct.pack("<IB", 1, ws.FORK)
        self.main.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        main.close()
        aux.close()
        for _, end in other.pipes:
            os.close(end)
        return other

    @staticmethod
    def born(other):
        """The id of the process that answers an order; 0 without an answer."""
        data, ancillary, _, _ = other.main.recvmsg(1, socket.CMSG_SPACE(12))
        return struct.unpack("3i", ancillary[0][2])[0] if data else 0

    def fork(self, name="m_0_1", start=True):
        """An instance."""
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        other = self.begin_fork()
        pid = self.born(other)
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert pid, "no process: " + repr(self.process.poll())
        other.main.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        other.process = ForkedProcess(pid, *(end for end, _ in other.pipes))
        other.settings = dict(self.settings, mode="serve", args=dict(self.settings["args"], model_instance_name=name))
        other.begin()
        other.send_main(ws.INIT, ws.str32(json.dumps(other.settings)))
        if start:
            other.facts = json.loads(other.expect("main", ws.INITIALIZED).str32())
        return other

    def become(self):
        """Has the template itself become an instance."""
        self.settings["mode"] = "serve"
        self.send_main(ws.INIT, ws.str32(json.dumps(self.settings)))
        self.facts = json.loads(self.expect("main", ws.INITIALIZED).str32())
        return self


class Templates(WorkerTest):
    """Processes that have imported their model and fork those of its instances."""

    def template(self, source=EVALUATE, inputs="CODE:BYTES", outputs="TEXT:BYTES", reason="", **settings):
        """A template of this model, which can be forked unless a reason is named."""
        found = self.serve(source, inputs, outputs, server=Template, **settings)
        self.assertRegex(found.reason, "^" + reason + "$")
        return found

    def fork(self, template, name="m_0_1", **options):
        other = template.fork(name, **options)
        self.addCleanup(other.__exit__)
        return other

    def test_instances_have_the_models_module_and_all_else_of_their_own(self):
        template = self.template("print('imported')\nPLACE = [__file__]\n" + EVALUATE)
        instances = [self.fork(template, "m_0_%d" % index) for index in range(3)]
        for index, instance in enumerate(instances):
            name = "m_0_%d" % index
            self.check(
                instance,
                [
                    ("model.args['model_instance_name']", repr(name)),
                    ("import os\nos.getpid()", str(instance.process.pid)),
                    ("import os\nos.getppid()", str(os.getpid())),
                    ("import os\nos.getpgid(0) == os.getpid()", "True"),
                    ("import sys\nlen(sys.modules['1.model'].PLACE)", "1"),
                    ("import os\nopen('/proc/self/comm').read()", repr(name + "\n")),
                    ("import os\nopen('/proc/self/cmdline').read().rstrip('.').rstrip(chr(0))", repr("deuteron: " + name)),
                    ("import ctypes\nn = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(n), 0, 0, 0)\nn.value", "9"),
                    ("import os\nlen([f for f in os.listdir('/proc/self/fd') if 'socket' in os.path.realpath('/proc/self/fd/' + f)])", "2"),
                    ("import os, sys\n[os.path.exists(p) for p in sys.path if p.startswith('/proc/%d/fd' % os.getpid())]", "[True]"),
                ],
            )
        self.assertEqual([instance.facts["pid"] for instance in instances], [each.process.pid for each in instances])
        for instance in instances:
            self.assertEqual(instance.finalize(), ("", ""))
            self.assertEqual(instance.process.returncode, 0)
        template.close()
        self.assertEqual(template.process.returncode, 0)

    def test_an_instance_outlives_its_template_and_its_status_is_the_servers_to_read(self):
        template = self.template()
        one, other = self.fork(template), self.fork(template)
        template.process.kill()
        template.process.wait(20)
        self.check(one, [("1 + 1", "2")])
        os.kill(one.process.pid, signal.SIGSEGV)
        self.assertEqual(one.process.wait(), -signal.SIGSEGV)
        other.send_execute({"CODE": ws.text_tensor((1,), b"import os\nos._exit(5)")})
        self.assertEqual(other.process.wait(), 5)

    def test_output_of_instances_comes_apart(self):
        source = "import ctypes\nctypes.CDLL(None).printf(b'of the import')\n" + EVALUATE
        template = self.template(source)
        one, other = self.fork(template), self.fork(template)
        for instance, word in ((one, "one"), (other, "other")):
            self.check(instance, [("print(%r)" % word, "None")])
            self.assertEqual(instance.finalize(), (word + "\n", ""))
        self.assertEqual(template.process.stdout.read1(100), b"of the import")

    def test_random_numbers_differ_unless_the_model_says_so(self):
        for seeds, is_equal in (
            ("", (False, False)),
            ("random.random(); np.random.random()", (False, False)),
            ("random.seed(); np.random.seed()", (False, False)),
            ("random.seed(7); np.random.seed(7)", (True, True)),
            ("random.seed(7)", (True, False)),
            ("np.random.seed(7)", (False, True)),
            ("from random import seed; seed(7)", (True, False)),
            ("GENERATORS = [np.random.default_rng(), np.random.RandomState()]", (False, False, False, False)),
            ("GENERATORS = [np.random.default_rng(7), np.random.RandomState(7)]", (False, False, True, True)),
            ("GENERATORS = [np.random.default_rng([7, 8])]", (False, False, False)),
        ):
            with self.subTest(seeds=seeds):
                template = self.template(DRAWS.format(seeds=seeds))
                drawn = [self.fork(template).finalize()[0].split() for _ in range(2)]
                self.assertEqual(tuple(one == other for one, other in zip(*drawn)), is_equal)
                if any(is_equal):
                    # As in a process of its own.
                    alone = self.serve(DRAWS.format(seeds=seeds)).finalize()[0].split()
                    self.assertEqual([one == other for one, other in zip(alone, drawn[0])], list(is_equal))

    def test_what_a_fork_would_share_keeps_a_template_from_it(self):
        for line, reason in (
            ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "its import has started a thread"),
            ("import socket; kept = socket.socket()", r"its import left a descriptor open \(socket:.*\)"),
            ("kept = os.pipe()", r"its import left a descriptor open \(pipe:.*\)"),
            ("kept = os.dup(1)", r"its import left a descriptor open \(pipe:.*\)"),
            ("kept = open(__file__)", r"its import left a descriptor open \(.*model.py\)"),
            ("import asyncio; kept = asyncio.new_event_loop()", r"its import left a descriptor open .*"),
            ("import mmap; kept = mmap.mmap(-1, 4096)", r"its import has mapped shared memory .*"),
            ("import subprocess; kept = subprocess.Popen(['sleep', '600'])", "its import has started a process"),
            ("import random; kept = random.Random(1)", r"its import has made a random.Random"),
            ("import tempfile; kept = tempfile.TemporaryDirectory()", "its import has made a temporary directory.*"),
            ("import signal; signal.signal(14, print); signal.alarm(600)", "its import has set a timer"),
            ("kept = pb_utils.MetricFamily('m', 'd', pb_utils.MetricFamily.COUNTER)", "its import has called the server"),
            ("import sys; sys.modules['ctypes'] = None", "this Python has no ctypes.*"),
        ):
            with self.subTest(line=line):
                source = EVALUATE.replace("class Triton", line + "\nclass Triton", 1)
                template = self.template(source, reason=reason)
                self.check(template.become(), [("model.args['model_instance_name']", "'m_0_0'")])
                if "Popen" in line:
                    self.check(template, [("import sys\nsys.modules['1.model'].kept.kill()", "None")])
                template.finalize()

    def test_what_is_harmless_does_not(self):
        for line in (
            "open(__file__).read()",
            "kept = open('/dev/urandom', 'rb')",
            "import random; kept = random.SystemRandom()",
            "t = threading.Thread(target=print); t.start(); t.join()",
            "import subprocess; subprocess.run(['true'])",
            "import secrets; kept = secrets.token_hex(), secrets.SystemRandom()",
            "kept = np.ones((300, 300)) @ np.ones((300, 300))",
            "pb_utils.Logger.log_info('imported')",
            "import tempfile; kept = tempfile.mkdtemp(); os.rmdir(kept)",
        ):
            with self.subTest(line=line):
                template = self.template(EVALUATE.replace("class Triton", line + "\nclass Triton", 1))
                self.check(self.fork(template), [("float((np.ones((300, 300)) @ np.ones((300, 300)))[0, 0])", "300.0")])

    def test_an_import_that_fails_is_told_as_by_an_instance(self):
        for source in ("import nothing_of_that_name\n", "raise ValueError('no')\n", "print(\n", "x = 1\n"):
            with self.subTest(source=source):
                texts = []
                for mode in ("serve", "template"):
                    server = self.serve(source, start=False, mode=mode)
                    text = server.expect("main", ws.FAILED).str32()
                    texts.append(text.replace(server.version, ""))
                self.assertEqual(*texts)

    def test_signals_are_those_of_any_instance(self):
        code = "import signal\n[signal.getsignal(n).__name__ for n in (2, 15)] + [sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]"
        alone, template = self.evaluator(), self.template()
        forked = self.fork(template)
        self.assertEqual(self.evaluate(forked, code), self.evaluate(alone, code))
        os.killpg(forked.process.pid, signal.SIGTERM)
        self.check(forked, [("1 + 1", "2")])

    def test_a_child_of_multiprocessing_imports_the_model_anew(self):
        source = EVALUATE + "\ndef double(x):\n    return 2 * x\n"
        code = (
            "import multiprocessing as mp, sys\nmp.get_context('spawn').Pool\n"
            "p = mp.get_context('spawn').Pool(1)\nr = p.apply(sys.modules['operator'].add, (1, 2))\np.terminate()\nr"
        )
        self.check(self.fork(self.template(source)), [(code, "3")])

    def test_an_order_without_its_files_is_refused_and_the_next_is_not(self):
        template = self.template()
        template.send_main(ws.FORK)
        self.check(self.fork(template), [("1", "1")])


__all__ = ["Templates"]

"""Loaded at the start of each Python of a suite (by a .pth file), and by pytest as a plugin: writes the outcome of every unit test to
the file NVIDIA_RECORD, a line each: script, test, outcome, and the first line of what went wrong."""

import os
import sys


def _write(path, script, name, outcome, text):
    with open(path, "a", encoding="utf-8") as record:
        record.write("\t".join([script, name, outcome, text.replace("\t", " ")[:300]]) + "\n")


def pytest_runtest_logreport(report):
    """A hook of pytest: a test has a report of its call, or of the phase before it that failed."""
    path = os.environ.get("NVIDIA_RECORD")
    if path and (report.when == "call" or (report.when == "setup" and not report.passed)):
        lines = [line for line in str(report.longrepr or "").splitlines() if line.startswith("E ")] or [""]
        name = report.nodeid.rsplit("::", 1)[-1]
        _write(path, os.path.basename(report.fspath), name, report.outcome, lines[0])


def _install(path):
    import unittest

    class Recorder:
        """Wraps the methods of unittest.TestResult that take an outcome."""

        outcomes = {}

    def note(test, outcome, text=""):
        # The worst outcome of a test and its subtests counts.
        known = Recorder.outcomes.get(id(test))
        if known is None or known[0] in ("passed", "skipped"):
            Recorder.outcomes[id(test)] = (outcome, text)

    def last_line(error):
        kind, value, _ = error
        lines = str(value).strip().splitlines() or [""]
        return f"{kind.__name__}: {lines[0]}"

    result = unittest.TestResult
    of = {name: getattr(result, name) for name in ("addSuccess", "addFailure", "addError", "addSkip", "addSubTest", "stopTest")}

    def add_success(self, test):
        note(test, "passed")
        of["addSuccess"](self, test)

    def add_failure(self, test, error):
        note(test, "failed", last_line(error))
        of["addFailure"](self, test, error)

    def add_error(self, test, error):
        note(test, "failed", last_line(error))
        if not isinstance(test, unittest.TestCase):
            # Of a class or module, whose tests do not begin.
            stop_test(self, test)
        of["addError"](self, test, error)

    def add_skip(self, test, reason):
        note(test, "skipped", reason)
        of["addSkip"](self, test, reason)

    def add_subtest(self, test, subtest, error):
        if error is not None:
            note(test, "failed", last_line(error))
        of["addSubTest"](self, test, subtest, error)

    def stop_test(self, test):
        outcome, text = Recorder.outcomes.pop(id(test), ("failed", "no outcome"))
        name = test.id().rsplit(".", 1)[-1]
        _write(path, os.path.basename(sys.argv[0]), name, outcome, text)
        if isinstance(test, unittest.TestCase):
            of["stopTest"](self, test)

    for name, method in (
        ("addSuccess", add_success),
        ("addFailure", add_failure),
        ("addError", add_error),
        ("addSkip", add_skip),
        ("addSubTest", add_subtest),
        ("stopTest", stop_test),
    ):
        setattr(result, name, method)


if os.environ.get("NVIDIA_RECORD") and not any(
    os.path.basename(argument) == "pytest" for argument in sys.orig_argv[:3]
):
    _install(os.environ["NVIDIA_RECORD"])

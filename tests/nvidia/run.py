"""Runs the suites of Triton's own repository (its folder `qa`) against this server, and compares each unit test with `expected.txt`.

    .ci/run nvidia PATH [SUITE...]

PATH is a checkout of triton-inference-server/server; it is copied, never changed. The suites run by their own scripts, one after the
other, on the ONNX models of their generators, against a build with the feature `test-hooks` and the flag `--compat=triton`. A test
counts each time a script begins it. The result is a table, and 1 if a test fails that `expected.txt` does not name, or if fewer than
97 % of the tests that can run have passed. Records and logs are kept below target/nvidia.
"""

import argparse
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSION = "26.09"
OPSET = "16"
GOAL = 0.97

# The suites: the scripts' variables, and SERVER_FLAGS of the server's. ONNX and Python are the backends that models are made for.
ONNX = {"BACKENDS": "onnx"}
SUITES = {
    "batch_input": ONNX,
    "batcher": ONNX,
    "client_nobatch": {},
    "dyna_sequence_batcher": ONNX,
    "grpc": {},
    "grpc_state_cleanup": {},
    "http": {},
    # Some of its models are for a backend of the tests.
    "implicit_state": {"BACKENDS": "onnx", "SERVER_FLAGS": "--exit-on-error=false --strict-readiness=false"},
    "infer": {"BACKENDS": "onnx", "CPU_ONLY": "1"},
    "infer_reshape": {},
    "infer_variable": {"BACKENDS": "onnx"},
    "infer_zero": ONNX,
    "input_validation": {},
    "iterative_sequence": {},
    "logging": {},
    "model_namespacing": {},
    "model_queue": {},
    "model_update": {},
    "nan_inf": {},
    "optional_input": {},
    "output_name": {},
    "parameters": {},
    "rate_limiter": {},
    "request_cancellation": {},
    "response_cache": {},
    "response_statistics": {},
    "sagemaker": {},
    "scalar_io": {},
    "sequence_batcher": {"BACKENDS": "onnx"},
    "shared_memory": {},
    "simple_ensemble": {},
    "string_io": ONNX,
    "trace": {},
    "vertex_ai": {},
}
# The error of a test that needs a model of PyTorch or TensorRT, or the collector of OpenTelemetry.
ABSENT = re.compile(r"unknown model: '(simple_|fan_|sequence_)?(libtorch|plan)_|'\./otelcol'")
# Seconds that a script may take; the longest takes about half as long on two cores.
LIMIT = 1800

# The generators of models, each with the folder that its models go to.
GENERATORS = [
    ("gen_qa_models.py --onnx", "qa_model_repository"),
    ("gen_qa_models.py --onnx --variable", "qa_variable_model_repository"),
    ("gen_qa_identity_models.py --onnx", "qa_identity_model_repository"),
    ("gen_qa_reshape_models.py --onnx --variable", "qa_reshape_model_repository"),
    ("gen_qa_sequence_models.py --onnx", "qa_sequence_model_repository"),
    ("gen_qa_sequence_models.py --onnx --variable", "qa_variable_sequence_model_repository"),
    ("gen_qa_implicit_models.py --onnx --initial-state zero", "qa_sequence_initial_state_implicit_model_repository"),
    (
        "gen_qa_implicit_models.py --onnx --initial-state zero --variable",
        "qa_variable_sequence_initial_state_implicit_model_repository",
    ),
    ("gen_qa_implicit_models.py --onnx", "qa_sequence_implicit_model_repository"),
    ("gen_qa_implicit_models.py --onnx --variable", "qa_variable_sequence_implicit_model_repository"),
    ("gen_qa_dyna_sequence_models.py --onnx", "qa_dyna_sequence_model_repository"),
    ("gen_qa_dyna_sequence_implicit_models.py --onnx", "qa_dyna_sequence_implicit_model_repository"),
    ("gen_qa_ragged_models.py --onnx", "qa_ragged_model_repository"),
    ("gen_qa_ort_scalar_models.py", "qa_scalar_models"),
    ("gen_qa_models.py --ensemble", "qa_ensemble_model_repository/qa_model_repository"),
    ("gen_qa_models.py --ensemble --variable", "qa_ensemble_model_repository/qa_variable_model_repository"),
    ("gen_qa_reshape_models.py --ensemble", "qa_ensemble_model_repository/qa_reshape_model_repository"),
    ("gen_qa_identity_models.py --ensemble", "qa_ensemble_model_repository/qa_identity_model_repository"),
    ("gen_qa_sequence_models.py --ensemble", "qa_ensemble_model_repository/qa_sequence_model_repository"),
    (
        "gen_qa_sequence_models.py --ensemble --variable",
        "qa_ensemble_model_repository/qa_variable_sequence_model_repository",
    ),
]


# Models of the repository's examples and tests that its image for tests (Dockerfile.QA) copies to suites.
COPIES = {
    # For the suite of traces.
    "decoupled": ["repeat_int32"],
    "grpc": ["simple", "simple_dyna_sequence", "simple_int8", "simple_identity", "simple_sequence", "simple_string"],
    "grpc_state_cleanup": ["repeat_int32"],
    "http": ["simple", "simple_dyna_sequence", "simple_identity", "simple_sequence", "simple_string"],
    "shared_memory": ["simple"],
}
# Versions without a file: their backends are built in here.
EMPTY_VERSIONS = [
    "L0_decoupled/models/repeat_int32/1",
    "L0_grpc_state_cleanup/models/repeat_int32/1",
    "L0_iterative_sequence/models/iterative_sequence/1",
    "custom_models/custom_sequence_int32/1",
    "custom_models/custom_dyna_sequence_int32/1",
]
# Files that scripts copy, of libraries that are built in here.
EMPTY_FILES = [
    "custom_models/custom_dyna_sequence_int32/1/libtriton_dyna_sequence.so",
    "custom_models/custom_sequence_int32/1/libtriton_sequence.so",
]


def add_models(source, qa):
    """Adds the models that the image for tests adds."""
    for suite, names in COPIES.items():
        for name in names:
            places = [source / "docs/examples/model_repository" / name, source / "src/test/models" / name]
            found = next(place for place in places if place.is_dir())
            shutil.copytree(found, qa / f"L0_{suite}" / "models" / name, dirs_exist_ok=True)
    for version in (1, 2):
        folder = qa / "L0_simple_ensemble/models/simple" / str(version)
        folder.mkdir(parents=True)
        shutil.copy(source / "docs/examples/model_repository/simple/1/model.onnx", folder)
    for folder in EMPTY_VERSIONS:
        (qa / folder).mkdir(parents=True, exist_ok=True)
    for file in EMPTY_FILES:
        (qa / file).touch()
    for name in ("simple_http_infer_client", "simple_grpc_infer_client"):
        client = qa / "clients" / name
        client.parent.mkdir(exist_ok=True)
        client.write_text(f"#!/usr/bin/env python3\n{(HERE / 'client.py').read_text()}")
        client.chmod(0o755)


def copy_suites(source, work):
    """Copies the suites, with the folders of an installation below `work`."""
    qa = work / "qa"
    for left in (qa, work / "opt-ml"):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(source / "qa", qa)
    add_models(source, qa)
    places = [(b"/opt/tritonserver", str(work / "tritonserver").encode()), (b"/data/inferenceserver", str(work / "data").encode())]
    places.append((b"/opt/ml/", f"{work}/opt-ml/".encode()))
    for path in qa.rglob("*"):
        if path.suffix in (".sh", ".py", ".pbtxt", ".conf") and path.is_file():
            text = changed = path.read_bytes()
            for old, new in places:
                changed = changed.replace(old, new)
            if changed != text:
                path.write_bytes(changed)
    return qa


def install(source, work, program):
    """Makes the folders that the scripts expect of an installation: the program, and no backends of their own."""
    folder = work / "tritonserver"
    for name in ("bin", "backends", "lib", "repoagents", "caches"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    server = folder / "bin" / "tritonserver"
    models = work / "opt-ml" / "models"
    # Scripts find the process by its name.
    own = folder / "libexec" / "tritonserver"
    own.parent.mkdir(exist_ok=True)
    shutil.copy(program, own)
    server.write_text(f'#!/bin/sh\nexec "{own}" --compat=triton --gpu=off --sagemaker-models-directory={models} "$@" $SERVER_FLAGS\n')
    server.chmod(0o755)
    serve = folder / "bin" / "serve"
    serve.write_text((source / "docker/sagemaker/serve").read_text().replace("/opt/ml/", f"{work}/opt-ml/"))
    serve.chmod(0o755)
    (folder / "TRITON_VERSION").write_text("2.73.0\n")
    if not (folder / "qa").exists():
        (folder / "qa").symlink_to(work / "qa")
    # The scripts install packages, which they have already, or do without.
    for name in ("pip", "pip3", "apt", "apt-get"):
        stub = work / "stubs" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/sh\n")
        stub.chmod(0o755)


def record_outcomes():
    """Lets each Python of this environment record the outcomes of its unit tests, where the variable asks for it."""
    packages = Path(site.getsitepackages()[0])
    shutil.copy(HERE / "record.py", packages / "nvidia_record.py")
    (packages / "nvidia_record.pth").write_text("import nvidia_record\n")


def make_models(work, qa, python):
    """Runs the generators, once for each folder of work."""
    data = work / "data" / VERSION
    done = data / "done"
    if done.exists():
        return
    shutil.rmtree(data, ignore_errors=True)
    for command, folder in GENERATORS:
        (data / folder).mkdir(parents=True, exist_ok=True)
        opset = [] if "--ensemble" in command else [f"--onnx_opset={OPSET}"]
        arguments = [python, *command.split(), *opset, f"--models_dir={data / folder}"]
        made = subprocess.run(arguments, cwd=qa / "common", capture_output=True, text=True)
        if made.returncode != 0:
            sys.exit(f"{command}: {made.stderr.strip().splitlines()[-1:]}")
    # ONNX Runtime has no addition of BF16 on CPUs, and ensembles of models that are not made do not load.
    absent = [*data.glob("*/onnx*bf16*")]
    for part in ("*libtorch*", "*plan*", "*onnx*bf16*"):
        absent += data.glob(f"qa_ensemble_model_repository/*/{part}")
    for folder in absent:
        shutil.rmtree(folder, ignore_errors=True)
    done.touch()


def run_suite(name, variables, work, qa, environment):
    """Runs one script, and returns its unit tests: (script, test, outcome, text)."""
    folder, logs = qa / f"L0_{name}", work / "logs"
    logs.mkdir(exist_ok=True)
    record = logs / f"{name}.tsv"
    record.unlink(missing_ok=True)
    began = time.monotonic()
    with open(logs / f"{name}.log", "wb") as log:
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"]
        # A network of its own: the scripts use the usual ports.
        command.append(f"ip link set lo up && bash -x test.sh {VERSION}")
        variables = {**environment, **variables, "NVIDIA_RECORD": str(record)}
        script = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            code = script.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            script.wait()
            code = f"the time limit of {LIMIT} s"
    lines = record.read_text().splitlines() if record.exists() else []
    tests = [tuple((line.split("\t") + [""])[:4]) for line in lines]
    print(f"{name}: {len(tests)} tests in {time.monotonic() - began:.0f} s, its script ended with {code}", flush=True)
    return tests, code


class Expected:
    """The failures that are expected: lines of `suite test reason`. A test may end with `*`; the reason begins with its kind:
    `absent` (the machine or the build lacks what it needs: it does not count), `differs` (docs/differences.md has the row) or
    `fault` (ours, to be mended)."""

    KINDS = ("absent", "differs", "fault")

    def __init__(self, path):
        self.rows = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line or line.startswith("#"):
                continue
            suite, test, reason = line.split(maxsplit=2)
            if suite not in SUITES:
                sys.exit(f"{path.name}:{number}: there is no suite {suite}")
            kind = reason.split(":")[0]
            if kind not in self.KINDS:
                sys.exit(f"{path.name}:{number}: the reason must begin with one of {', '.join(self.KINDS)}")
            pattern = re.compile(".*".join(re.escape(part) for part in test.split("*")))
            self.rows.append((suite, pattern, kind, reason))

    def find(self, suite, test):
        return next(((kind, reason) for at, pattern, kind, reason in self.rows if at == suite and pattern.fullmatch(test)), None)


def report(results, expected):
    """Prints the table, and returns True if all is as expected."""
    print("\n| suite | run | passed | absent | differs | faults | unexpected |\n|---|---|---|---|---|---|---|")
    totals, surprises = [0] * 6, []
    for suite, (tests, code) in results.items():
        row = [0] * 6
        if not tests or "limit" in str(code):
            surprises.append(f"{suite}: {len(tests)} tests, its script ended with {code}")
        for script, test, outcome, text in tests:
            if outcome == "skipped":
                continue
            row[0] += 1
            if outcome == "passed":
                row[1] += 1
                continue
            known = ("absent", text) if ABSENT.search(text) else expected.find(suite, test)
            if known is None:
                row[5] += 1
                surprises.append(f"{suite} {test} ({script}): {text}")
            else:
                row[2 + Expected.KINDS.index(known[0])] += 1
        totals = [total + part for total, part in zip(totals, row)]
        print(f"| `{suite}` | " + " | ".join(map(str, row)) + " |")
    print("| all | " + " | ".join(map(str, totals)) + " |")
    counted = totals[0] - totals[2]
    # What differs does so on purpose.
    share = totals[1] / max(1, counted - totals[3])
    print(f"\nOf {totals[0]} tests {counted} can run here; {totals[3]} differ on purpose; {totals[1]} of the others passed: {share:.1%}")
    for surprise in surprises:
        print(f"unexpected: {surprise}")
    return not surprises and share >= GOAL


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="a checkout of triton-inference-server/server")
    parser.add_argument("suites", nargs="*", help="suites, without L0_; all of the table by default")
    parser.add_argument("--program", type=Path, required=True, help="deuteron, with the feature test-hooks")
    parser.add_argument("--work", type=Path, required=True, help="a folder for models, logs and records")
    asked = parser.parse_intermixed_args()
    if not (asked.source / "qa").is_dir():
        sys.exit(f"{asked.source} has no folder qa: a checkout of triton-inference-server/server is needed")
    unknown = [name for name in asked.suites if name not in SUITES]
    if unknown:
        sys.exit(f"unknown suites: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    qa = copy_suites(asked.source, work)
    install(asked.source, work, asked.program.resolve())
    record_outcomes()
    make_models(work, qa, sys.executable)
    path = f"{work / 'stubs'}:{work / 'tritonserver/bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(qa / "common"), "VIRTUAL_ENV": sys.prefix, "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTEST_ADDOPTS"] = "-p nvidia_record"
    results = {}
    for name in asked.suites or SUITES:
        results[name] = run_suite(name, SUITES[name], work, qa, environment)
    sys.exit(0 if report(results, Expected(HERE / "expected.txt")) else 1)


if __name__ == "__main__":
    main()

"""Checks of the Python module, by the `deuteron` that can be imported: `module.py MODELS`. A line for each check that holds."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import deuteron

MODELS = pathlib.Path(sys.argv[1]).resolve()
TLS = pathlib.Path(__file__).resolve().parent.parent / "tls"


def ask(server, timeout=10.0):
    """The best label of the example's scan."""
    body = (MODELS / "digits" / "request.json").read_bytes()
    request = urllib.request.Request(server.urls["http"] + "/v2/models/digits/infer", body)
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.load(reply)["outputs"][0]["data"][0].split(":")[2]


def a_server_is_ready_when_it_returns():
    start = time.monotonic()
    with deuteron.Server(MODELS) as server:
        ready = time.monotonic() - start
        assert ask(server) == "seven"
        assert server.is_running and server.pid > 0
        assert set(server.urls) == {"http", "grpc", "metrics"}, server.urls
        assert all(url.startswith("http://127.0.0.1:") for url in server.urls.values()), server.urls
        assert server.address("http") == server.urls["http"][len("http://"):]
        metrics = urllib.request.urlopen(server.urls["metrics"] + "/metrics").read().decode()
        assert "deuteron_build_info" in metrics
    assert not server.is_running and "ended" in repr(server)
    assert ready < 20, ready
    return f"{ready * 1e3:.0f} ms to ready"


def two_servers_have_ports_of_their_own():
    with deuteron.Server([MODELS / "digits"]) as one, deuteron.Server(str(MODELS / "digits"), args=["--id=two"]) as two:
        assert len({*one.urls.values(), *two.urls.values()}) == 6
        assert ask(one) == ask(two) == "seven"
        with urllib.request.urlopen(two.urls["http"] + "/v2") as reply:
            assert json.load(reply)["name"] == "two"


def a_server_that_does_not_start_says_why():
    for models, args, status, want in [
        ("no-such-directory", [], 1, "no-such-directory"),
        (MODELS, ["--http-prot=1"], 2, "did you mean '--http-port'?"),
    ]:
        try:
            deuteron.Server(models, args=args)
        except deuteron.ServerError as error:
            assert want in str(error) and f"ended with {status}" in str(error), error
        else:
            raise AssertionError(f"{models} {args} started")


def a_server_that_is_too_slow_is_given_up():
    try:
        deuteron.Server(MODELS, timeout=0.0)
    except deuteron.ServerError as error:
        assert "was not ready after 0 s" in str(error), error
    else:
        raise AssertionError("it was ready at once")


def the_log_is_kept():
    with deuteron.Server(MODELS / "digits", env={"DEUTERON_LOG_VERBOSE": "0"}) as server:
        deadline = time.monotonic() + 5
        while not any("ready after" in line for line in server.log):
            assert time.monotonic() < deadline, server.log
            time.sleep(0.01)
    assert any("ended" in line for line in server.log), server.log


def a_server_goes_with_a_process_that_is_killed():
    program = (
        "import deuteron, sys, time\n"
        "server = deuteron.Server(sys.argv[1])\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(MODELS / "digits")], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    start = time.monotonic()
    while is_alive(pid):
        assert time.monotonic() - start < 5, f"{pid} lives on"
        time.sleep(0.01)
    return f"{(time.monotonic() - start) * 1e3:.0f} ms after"


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def a_server_is_not_interrupted_with_the_process_that_has_it():
    with deuteron.Server(MODELS / "digits") as server:
        assert os.getpgid(server.pid) == server.pid != os.getpgid(0)


def who_is_interrupted_while_it_waits_leaves_no_server():
    program = (
        "import deuteron, os, signal, subprocess, sys, threading, time\n"
        "real, children = subprocess.Popen, []\n"
        # A shell that runs this in the background may have made it ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        # Not within Popen: that would leave an unknown process.
        "def interrupt():\n"
        "    is_within = True\n"
        "    while is_within:\n"
        "        time.sleep(0.3)\n"
        "        frame, codes = sys._current_frames()[threading.main_thread().ident], []\n"
        "        while frame:\n"
        "            codes.append(frame.f_code)\n"
        "            frame = frame.f_back\n"
        "        is_within = Popen.__init__.__code__ in codes\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "class Popen(real):\n"
        "    def __init__(self, *args, **more):\n"
        "        super().__init__(*args, **more)\n"
        "        children.append(self)\n"
        "        self.send_signal(signal.SIGSTOP)\n"
        "        threading.Thread(target=interrupt, daemon=True).start()\n"
        "subprocess.Popen = Popen\n"
        "before = os.listdir('/proc/self/fd')\n"
        "try:\n"
        "    deuteron.Server(sys.argv[1])\n"
        # It was ready before it could be stopped: it ends with this process.
        "    children[0].send_signal(signal.SIGCONT)\n"
        "    os._exit(3)\n"
        "except KeyboardInterrupt:\n"
        "    assert children[0].returncode == -signal.SIGKILL, children[0].returncode\n"
        "    assert len(os.listdir('/proc/self/fd')) == len(before)\n"
        "    print('interrupted')\n"
    )
    command = [sys.executable, "-c", program, str(MODELS / "digits")]
    for _ in range(10):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if done.returncode != 3:
            break
    assert done.stdout == "interrupted\n", done.stdout + done.stderr


def what_does_not_start_leaves_no_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    for models, more, error in [
        (3, {}, TypeError),
        (MODELS, {"env": {"A\0": ""}}, ValueError),
        ("no-such-directory", {}, deuteron.ServerError),
    ]:
        try:
            deuteron.Server(models, **more)
        except error:
            pass
        else:
            raise AssertionError(f"{models} {more} started")
    assert len(os.listdir("/proc/self/fd")) == before


def the_addresses_say_where_there_is_tls():
    files = [f"--grpc-server-{name}={TLS / 'server'}.{end}" for name, end in (("cert", "pem"), ("key", "key"))]
    for args, env, want in [
        (["--grpc-use-ssl=true"], {}, "https"),
        (["--grpc-use-ssl", "TRUE"], {}, "https"),
        ([], {"DEUTERON_GRPC_USE_SSL": "1"}, "https"),
        (["--grpc-use-ssl=true", "--grpc-use-ssl=false"], {}, "http"),
    ]:
        with deuteron.Server(MODELS / "digits", args=[*args, *files], env=env) as server:
            schemes = {name: url.split(":")[0] for name, url in server.urls.items()}
            assert schemes == {"http": "http", "grpc": want, "metrics": "http"}, (args, schemes)
            # The address is right: a client without TLS is refused if the port has TLS.
            try:
                urllib.request.urlopen(f"http://{server.address('grpc')}/v2/health/live").close()
            except urllib.error.HTTPError as error:
                assert (want, error.code) == ("https", 400), (args, error.code)
            else:
                assert want == "http", args


def load_comes_back_as_a_table():
    with deuteron.Server(MODELS / "digits") as server:
        result = deuteron.bench(server, "digits", concurrency="1:2", args=["-p", "300", "-r", "1"])
        assert [row.concurrency for row in result] == [1, 2]
        assert all(row.throughput > 0 and row.failed == 0 and row.p50_us <= row.p99_us for row in result)
        assert result[0].cpu_per_request_us > 0
        lines = repr(result).splitlines()
        assert len(lines) == 3 and "infer/s" in lines[0], lines
        assert "<td>" in result._repr_html_() and result.to_dicts()[0]["model"] == "digits"
        try:
            deuteron.bench(server, "none")
        except RuntimeError as error:
            assert "none" in str(error), error
        else:
            raise AssertionError("there is no such model")


def the_module_is_the_command_too():
    command = [sys.executable, "-m", "deuteron", "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert version.startswith("deuteron "), version
    assert os.access(deuteron.find_binary(), os.X_OK)
    return version.strip()


for check in [
    a_server_is_ready_when_it_returns,
    two_servers_have_ports_of_their_own,
    a_server_that_does_not_start_says_why,
    a_server_that_is_too_slow_is_given_up,
    the_log_is_kept,
    a_server_goes_with_a_process_that_is_killed,
    a_server_is_not_interrupted_with_the_process_that_has_it,
    who_is_interrupted_while_it_waits_leaves_no_server,
    what_does_not_start_leaves_no_descriptors,
    the_addresses_say_where_there_is_tls,
    load_comes_back_as_a_table,
    the_module_is_the_command_too,
]:
    more = check()
    print("ok", check.__name__, more or "", flush=True)

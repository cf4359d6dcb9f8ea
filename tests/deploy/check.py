#!/usr/bin/env python3
"""Checks what is in deploy/: the Grafana board, the rules and the scrape configuration, against a server under load.

    python3 tests/deploy/check.py DEUTERON_BINARY

It starts the server with examples/models and two models of its own, sends requests, and runs a real Prometheus that
scrapes it. It prints a line for each check, and exits with 1 where one failed. Without prometheus and promtool (Debian's
package prometheus has both) it checks nothing and says so.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "deploy")
TESTS = os.path.join(ROOT, "tests", "deploy")

# Families that this server does not show, each with the file that has its name and the reason.
NOT_SHOWN = {
    "deuteron_gpu_restarts_total": ("crates/base/src/metrics/gpus.rs", "only a server with instances on GPUs has it"),
}
# Prometheus makes these itself.
OF_PROMETHEUS = {"up"}

LOAD_SECONDS = 6
SCRAPES = 8
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan", "by", "without", "on", "ignoring"}

# Models that examples/models lacks: one with instances on workers and a queue, and one with sequences.
MODELS = {
    "queued": "dynamic_batching { max_queue_delay_microseconds: 500 }",
    "turns": "sequence_batching { max_sequence_idle_microseconds: 60000000 }",
}
MODEL_CONFIG = """backend: "identity"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""

failures = []


def report(name, mistake=None):
    """One line for a check; with a mistake it failed."""
    print(f"FAILED {name}: {mistake}" if mistake else f"ok {name}", flush=True)
    if mistake:
        failures.append(name)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def wait_for(what, probe, seconds=30):
    """Asks again until there is an answer, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = probe()
        if answer:
            return answer
        time.sleep(0.1)
    sys.exit(f"FAILED: no {what} within {seconds} s")


def fetch(url, headers=None, body=None):
    """Status and text of an answer; None without a listener."""
    request = urllib.request.Request(url, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


class Process:
    """A process whose output goes to a file, and which ends with the block."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "wb") as file:
            self.child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        try:
            self.child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def text(self):
        if self.child.poll() is not None:
            sys.exit(f"FAILED: {self.child.args[0]} ended\n{read(self.log)}")
        return read(self.log)


class Server(Process):
    """Deuteron with keys, TLS on the gRPC port, and all ports free ones."""

    def __init__(self, binary, folder):
        repository = os.path.join(folder, "models")
        for name, batching in MODELS.items():
            write(os.path.join(repository, name, "config.pbtxt"), MODEL_CONFIG + batching + "\n")
            os.makedirs(os.path.join(repository, name, "1"))
        classes = [f"--class={name}" for name in ("infer", "read", "metrics")]
        made = subprocess.run([binary, "key", "check", *classes], check=True, capture_output=True, text=True)
        self.binary = binary
        self.key = re.search(r"^dt_\S+$", made.stderr, re.M)[0]
        keys = os.path.join(folder, "keys.toml")
        write(keys, made.stdout)
        tls = os.path.join(ROOT, "tests", "tls")
        places = [f"--{port}-{what}" for port in ("http", "grpc", "metrics") for what in ("port=0", "address=127.0.0.1")]
        flags = ["--grpc-use-ssl=true", f"--grpc-server-cert={tls}/server.pem", f"--grpc-server-key={tls}/server.key"]
        models = [os.path.join(ROOT, "examples", "models"), repository]
        command = [binary, "serve", *models, *places, *flags, f"--api-keys-file={keys}", "--gpu=off"]
        super().__init__(command, os.path.join(folder, "server.log"))
        wait_for("server that is ready", lambda: "ready after" in self.text())
        log = self.text()
        self.http = re.search(r"Started HTTPService at (\S+:\d+)", log)[1]
        self.metrics = re.search(r"Started Metrics Service at (\S+:\d+)", log)[1]

    def infer(self, parameters, headers):
        body = {
            "parameters": parameters,
            "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}],
        }
        return fetch(f"http://{self.http}/v2/models/turns/infer", headers, json.dumps(body).encode())[0]

    def ask(self):
        """A sequence that begins, one that does not, and a client without a key."""
        known = {"Authorization": f"Bearer {self.key}"}
        statuses = [
            self.infer({"sequence_id": 1, "sequence_start": True}, known),
            self.infer({"sequence_id": 2}, known),
            self.infer({"sequence_id": 1}, {}),
        ]
        report("requests for sequences", None if statuses == [200, 400, 401] else f"{statuses}")

    def load(self):
        """Runs `deuteron bench` on each model."""
        for name in ("digits", "identity", "queued"):
            window = LOAD_SECONDS * 1000 // 3
            flags = [f"-p{window}", "--max-trials=1", "--concurrency=4", f"--header=Authorization:Bearer {self.key}"]
            done = subprocess.run(
                [self.binary, "bench", "-m", name, "-u", self.http, *flags], capture_output=True, text=True
            )
            report(f"load of model {name}", done.stderr.strip() if done.returncode else None)

    def scrape(self):
        status, text = fetch(f"http://{self.metrics}/metrics", {"Authorization": f"Bearer {self.key}"})
        report("a scrape is answered", None if status == 200 else f"status {status}")
        return text


class Prometheus(Process):
    """Prometheus with the configuration of deploy/, made faster, and its data in the folder."""

    def __init__(self, server, folder):
        key = os.path.join(folder, "scrape.key")
        write(key, server.key)
        shutil.copy(os.path.join(DEPLOY, "prometheus-rules.yml"), folder)
        config = os.path.join(folder, "prometheus.yml")
        text = read(os.path.join(DEPLOY, "prometheus.yml"))
        for old, new in (
            ("_interval: 15s", "_interval: 1s"),
            ("localhost:8002", server.metrics),
            ("    # authorization:\n    #   credentials_file: /etc/prometheus/deuteron.key",
             f"    authorization:\n      credentials_file: {key}"),
        ):
            if old not in text:
                sys.exit(f"FAILED: deploy/prometheus.yml lacks {old!r}")
            text = text.replace(old, new)
        write(config, text)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}/api/v1"
        data = os.path.join(folder, "data")
        flags = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"]
        super().__init__(["prometheus", *flags], os.path.join(folder, "prometheus.log"))

    def get(self, path, **query):
        self.text()
        answer = fetch(f"{self.url}/{path}?{urllib.parse.urlencode(query)}")
        return json.loads(answer[1]) if answer and answer[1].startswith("{") else {"status": "error", "error": answer}

    def ask(self, expression):
        """The series of an expression now, and what is wrong with it."""
        answer = self.get("query", query=expression)
        if answer["status"] != "success":
            return [], f"{answer['error']}"
        return answer["data"]["result"], None

    def has_scraped(self):
        series, _ = self.ask('sum_over_time(up{job="deuteron"}[1m])')
        return bool(series) and float(series[0]["value"][1]) >= SCRAPES

    def rules(self):
        answer = self.get("rules")
        return [rule for group in answer["data"]["groups"] for rule in group["rules"]]

    def evaluated_rules(self):
        """The rules, once each was evaluated after the scrapes."""
        rules = self.rules()
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None


def promtool(*words, given=None):
    done = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


def check_files():
    for words in (
        ("check", "rules", os.path.join(DEPLOY, "prometheus-rules.yml")),
        ("check", "config", os.path.join(DEPLOY, "prometheus.yml")),
        ("test", "rules", os.path.join(TESTS, "rules_test.yml")),
    ):
        status, text = promtool(*words)
        name = os.path.relpath(words[2], ROOT)
        report(f"promtool {words[0]} {words[1]} {name}", text if status else None)


def check_scrape(text):
    """Names that Triton set (nv_) may break the rules of Prometheus; ours may not."""
    status, complaints = promtool("check", "metrics", given=text)
    if status == 1:
        report("promtool check metrics", complaints)
        return
    own = [line for line in complaints.splitlines() if line and not line.startswith("nv_")]
    report("promtool check metrics", "; ".join(own) or None)


def selectors(expression):
    """The metrics of an expression with the text of their matchers: [(name, matchers)]."""
    found = []
    rest = re.sub(r"\[[^\]]*\]", "", expression)
    rest = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", rest)
    token = r'([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\(|\{(?:[^}"]|"(?:[^"\\]|\\.)*")*\})?|\d[\w.]*|"(?:[^"\\]|\\.)*"'
    for match in re.finditer(token, rest):
        name, after = match[1], match[2] or ""
        if name and after != "(" and name.lower() not in WORDS:
            found.append((name, after.strip("{}")))
    return found


def single_selectors(name, matchers):
    """One selector for each value that the matchers list, so that each value must be there."""
    sets = [[]]
    for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
        listed = value.split("|") if operator == "=~" and re.fullmatch(r"[\w|]+", value) else [value]
        operator = "=" if len(listed) > 1 else operator
        sets = [chosen + [f'{label}{operator}"{each}"'] for chosen in sets for each in listed]
    return [f"{name}{{{','.join(chosen)}}}" if chosen else name for chosen in sets]


class Checker:
    """Holds expressions against Prometheus and the families of a scrape."""

    def __init__(self, prometheus, families, records):
        self.prometheus = prometheus
        self.families = families
        self.records = records

    def mistake(self, expression, needs_number):
        """The mistake in an expression, or None."""
        series, mistake = self.prometheus.ask(expression)
        if mistake:
            return mistake
        found = selectors(expression)
        if not found and not re.fullmatch(r"vector\(\d+\)", expression):
            return f"it has no metric: {expression}"
        mistakes = [self.metric_mistake(name, matchers) for name, matchers in found]
        mistakes = [text for text in mistakes if text]
        if mistakes:
            return mistakes[0]
        is_excused = any(name in NOT_SHOWN for name, _ in found)
        if needs_number and not is_excused and not any(one["value"][1] != "NaN" for one in series):
            return f"no series with a number: {expression}"
        return None

    def metric_mistake(self, name, matchers):
        if name in NOT_SHOWN:
            file, reason = NOT_SHOWN[name]
            if name in self.families:
                return f"{name} is shown, though '{reason}'"
            return None if f'"{name}"' in read(os.path.join(ROOT, file)) else f"{name} is not in {file}"
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        is_histogram = self.families.get(family) == "histogram" and family != name
        if not (name in self.families or is_histogram or name in self.records or name in OF_PROMETHEUS):
            return f"{name} is not in the scrape"
        for selector in single_selectors(name, matchers):
            series, mistake = self.prometheus.ask(selector)
            if mistake or not series:
                return mistake or f"no series: {selector}"
        return None


def check_rules(checker, rules):
    for rule in rules:
        name = f"rule {rule['name']}" if rule["type"] == "recording" else f"alert {rule['name']}"
        mistake = checker.mistake(rule["query"], needs_number=rule["type"] == "recording")
        if rule["health"] != "ok":
            mistake = rule.get("lastError") or rule["health"]
        wanted = {"summary", "description"}
        if rule["type"] == "alerting" and not (wanted <= {*rule["annotations"]} and "severity" in rule["labels"]):
            mistake = "it lacks severity, summary or description"
        report(name, mistake)


def check_rules_are_tested(rules):
    cases = re.findall(r"alertname: (\w+)\n\s+exp_alerts:(.*)", read(os.path.join(TESTS, "rules_test.yml")))
    for name in [rule["name"] for rule in rules if rule["type"] == "alerting"]:
        fires = {" []" not in expected for case, expected in cases if case == name}
        report(f"tests of alert {name}", None if fires == {True, False} else "it must fire in one and not in another")


def fill(text, variables):
    """The text with the variables of Grafana filled in."""
    for name in sorted(variables, key=len, reverse=True):
        text = text.replace(f"${{{name}}}", variables[name]).replace(f"${name}", variables[name])
    return text


def panel_mistake(checker, panel, variables):
    sentence = panel.get("description", "")
    if not sentence.endswith(".") or ". " in sentence:
        return "its description is not one sentence"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        return "it has no unit"
    if panel["datasource"]["uid"] != "${datasource}":
        return "its data source is not the variable"
    for target in panel["targets"]:
        expression = fill(target["expr"], variables)
        mistake = f"variable left: {expression}" if "$" in expression else checker.mistake(expression, True)
        if mistake:
            return mistake
    return None


def check_board(checker):
    board = json.loads(read(os.path.join(DEPLOY, "grafana.json")))
    variables = {"__rate_interval": "1m"}
    for variable in board["templating"]["list"]:
        variables[variable["name"]] = variable["query"] if variable["type"] == "textbox" else ".+"
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            inner = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            expression = f'count by ({inner[2]}) ({fill(inner[1], variables)})'
            series, mistake = checker.prometheus.ask(expression)
            has_label = series and all(inner[2] in one["metric"] for one in series)
            mistake = mistake or checker.mistake(fill(inner[1], variables), True)
            report(f"variable {variable['name']}", mistake or (None if has_label else f"no value: {expression}"))
    ids = [panel["id"] for panel in board["panels"]]
    is_well = board["schemaVersion"] >= 39 and len(ids) == len({*ids})
    report("board", None if is_well else "its schema is old, or two panels have one id")
    for panel in board["panels"]:
        if panel["type"] != "row":
            report(f"panel {panel['title']}", panel_mistake(checker, panel, variables))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print("skipped: no promtool")
        return
    check_files()
    with tempfile.TemporaryDirectory() as folder:
        with Server(os.path.abspath(sys.argv[1]), folder) as server, Prometheus(server, folder) as prometheus:
            server.ask()
            server.load()
            text = server.scrape()
            check_scrape(text)
            wait_for(f"{SCRAPES} scrapes", prometheus.has_scraped)
            rules = wait_for("rules that were evaluated", prometheus.evaluated_rules)
            families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
            records = {rule["name"] for rule in rules if rule["type"] == "recording"}
            checker = Checker(prometheus, families, records)
            check_rules(checker, rules)
            check_rules_are_tested(rules)
            check_board(checker)
    if failures:
        sys.exit(f"{len(failures)} failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()

"""KServe's part of the contract: the runtimes of deploy/kserve with models as KServe brings them, asked as Knative's proxy asks,
scraped and scaled, and told by KServe's agent what to load."""

import http.server
import json
import math
import os
import re
import shutil
import subprocess
import threading
import time

import yaml

import objects
import peers
from checks import (
    DIGITS,
    SLOW_REQUEST,
    Load,
    Stage,
    answers_by_name,
    check,
    copied,
    end,
    expect,
    refusal,
    repository,
    rights,
    scraped,
)
from node import Failed, Kubelet, Pod
from objects import Refused

#: Of both containers, by KServe's configuration (`uidModelcar`).
CAR_USER = 1010


def without_name(config):
    return re.sub(r'^name: ".*"\n', "", config, flags=re.M)


def layouts_of_one_model(folder):
    """The results of a storage initializer for a `storageUri`: a file, a folder, or a model's own folder."""
    made = {name: folder / name for name in ("file", "any-name", "versions", "configured", "modelcar")}
    copied(DIGITS / "1", made["file"], "model.onnx")
    copied(DIGITS / "1", made["any-name"], "model.onnx")
    (made["any-name"] / "model.onnx").rename(made["any-name"] / "my_digits.onnx")
    copied(DIGITS, made["versions"], "1")
    copied(DIGITS, made["configured"], "1", "labels.txt")
    (made["configured"] / "config.pbtxt").write_text(without_name((DIGITS / "config.pbtxt").read_text()))
    return made


def service_named(name, runtime="deuteron-onnx", **model):
    predictor = {"model": {"runtime": runtime, **model}}
    return {"metadata": {"name": name, "namespace": "models"}, "spec": {"predictor": predictor}}


def example(name):
    return next(document for document in objects.examples() if document["metadata"]["name"] == name)


@check("a storage initializer brings one model: it is served by the InferenceService's name, REST and gRPC on one port")
def one_model(stage):
    seconds = {}
    for layout, models in layouts_of_one_model(stage.folder / "one").items():
        if layout == "modelcar":
            continue
        pod = stage.pod(service_named("my-digits"), models)
        kubelet = Kubelet(pod)
        try:
            seconds[layout] = kubelet.start()
            answers_by_name(pod, "my-digits")
        finally:
            kubelet.kill()
    return ", ".join(f"{layout} ready in {taken:.1f} s" for layout, taken in seconds.items())


@check("models as an image (modelcar): a link through another container, which may come after the server's start")
def modelcar(stage):
    models = copied(DIGITS / "1", stage.folder / "car/models", "model.onnx")
    mount = stage.folder / "car/mnt"
    mount.mkdir()
    # KServe gives both containers one user, so that one may look into the other, and mounts the folder above.
    spec = objects.pod_of(objects.runtimes()["deuteron-onnx"], service_named("my-digits"))
    container = spec["containers"][0]
    container["securityContext"]["runAsUser"] = CAR_USER
    container["volumeMounts"] = [{"name": "mnt", "mountPath": "/mnt", "readOnly": False}]
    container.setdefault("env", []).append({"name": "MODEL_INIT_MODE", "value": "async"})
    user = [f"--reuid={CAR_USER}", "--regid=0", "--clear-groups"] if os.environ.get("CONTRACT_IS_ROOT") == "1" else []
    car = subprocess.Popen(["setpriv", "--bounding-set=-all", *user, "sleep", "60"])
    pod = Pod(stage.image, spec, {"mnt": mount})
    kubelet = Kubelet(pod)
    try:
        pod.start()
        expect(pod.process.wait(10) == 1 and "cannot open the model repository '/mnt/models'" in pod.log(), pod.log())
        (mount / "models").symlink_to(f"/proc/{car.pid}/root{models}")
        seconds = kubelet.start()
        answers_by_name(pod, "my-digits")
    finally:
        kubelet.kill()
        car.kill()
        car.wait()
    return f"without the link it says so and ends; started again by the kubelet, ready in {seconds:.1f} s"


@check("a pod that cannot serve says why, and ends")
def mistaken_pods(stage):
    named = stage.folder / "named"
    copied(DIGITS, named, "1", "config.pbtxt", "labels.txt")
    renamed = stage.pod(service_named("other"), named)
    kubelet = Kubelet(renamed)
    try:
        kubelet.start()
        answers_by_name(renamed, "other")
    finally:
        kubelet.kill()
    empty = stage.folder / "nothing"
    empty.mkdir()
    cases = {
        "is a repository of the models 'digits', 'identity', 'slow'": stage.pod(
            service_named("other"), repository(stage.folder / "several")
        ),
        "there is no model in '/mnt/models'": stage.pod(service_named("a", "deuteron-triton"), empty),
        "--drain-delays": stage.pod(service_named("a", args=["--drain-delays=5"]), named),
    }
    for text, pod in cases.items():
        try:
            Kubelet(pod).start()
            raise AssertionError("it was ready")
        except Failed as error:
            status = 2 if text.startswith("--") else 1
            expect(f"ended with {status}" in str(error) and text in str(error), f"'{text}' is not in '{error}'")
        except AssertionError as error:
            raise Failed(f"{text}: {error}") from None
        finally:
            pod.kill()
    return f"{len(cases)} of {len(cases)}: another name in config.pbtxt, a repository, nothing at all, an unknown flag"


@check(
    "arguments of the InferenceService come behind the runtime's, $(VARIABLES) are filled in, and links of Services change nothing"
)
def arguments(stage):
    models = copied(DIGITS / "1", stage.folder / "arguments", "model.onnx")
    # The last of a flag that is given twice counts; $$ is a dollar; a variable that is not there stays.
    given = ["--drain-delay=0", "--id=$(WHO)-$$(WHO)-$(NOBODY)"]
    pod = stage.pod(service_named("my-digits", args=given, env=[{"name": "WHO", "value": "pod"}]), models)
    links = [name for name in pod.variables() if name.startswith("DEUTERON_")]
    kubelet = Kubelet(pod)
    try:
        kubelet.start()
        told = json.loads(peers.ask(8080, "GET", "/v2")[1])["name"]
        expect(told == "pod-$(WHO)-$(NOBODY)", f"--id is {told}")
        expect("DEUTERON_HTTP_PORT" in links and "DEUTERON_GRPC_PORT" in links, str(links))
        status, seconds = kubelet.terminate()
    finally:
        kubelet.kill()
    expect(status == 0 and seconds < 4, f"it ended with {status} after {seconds:.1f} s")
    return f"{len(links)} variables DEUTERON_… of links; with --drain-delay=0 it ended in {seconds:.2f} s"


@check("Knative's proxy finds HTTP/2 on the one port; REST and gRPC share a connection, and HTTP/1.1 has the same port")
def one_port(stage):
    pod = stage.pod(service_named("my-digits"), copied(DIGITS / "1", stage.folder / "knative", "model.onnx"))
    path = pod.container["readinessProbe"]["httpGet"]["path"]
    port, kubelet = pod.port("h2c"), Kubelet(pod)
    expect([p["containerPort"] for p in pod.container["ports"]] == [port], "one port")
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 8089), PlainHandler)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    try:
        expect(peers.detected_protocol(port, path) == 0, "a protocol before it listens")
        expect(peers.detected_protocol(8089, path) == 1, "a server of HTTP/1.1 alone is taken for one of HTTP/2")
        kubelet.start()
        expect(peers.detected_protocol(port, path) == 2, "no HTTP/2")
        proxy, count = peers.H2c(port), 50
        rest, calls = [], []
        for _ in range(count):
            rest.append(
                proxy.begin(
                    "POST", "/v2/models/my-digits/infer", peers.PLAIN_DIGIT, [("content-type", "application/json")]
                )
            )
            calls.append(proxy.begin_grpc(peers.INFER, peers.digit_request("my-digits")))
        for stream in rest:
            reply = proxy.finish(stream)
            expect(reply["head"][":status"] == "200" and peers.digit_of(reply["body"]) == peers.SEVEN, f"{reply}")
        for stream in calls:
            reply = proxy.finish(stream)
            expect(reply["trailers"].get("grpc-status") == "0", f"{reply}")
            expect(peers.digit_of_response(reply["body"]) == peers.SEVEN, f"{reply}")
        health = proxy.finish(proxy.begin_grpc("/grpc.health.v1.Health/Check", b""))
        expect(health["body"][5:] == b"\x08\x01", f"health: {health}")
        proxy.close()
        status, body = peers.ask(port, "POST", "/v2/models/my-digits/infer", peers.PLAIN_DIGIT)
        expect(status == 200 and peers.digit_of(body) == peers.SEVEN, f"HTTP/1.1: {status} {body}")
    finally:
        plain.shutdown()
        kubelet.kill()
    return f"{count} REST and {count} gRPC requests on one connection; a server of HTTP/1.1 alone is told apart"


class PlainHandler(http.server.BaseHTTPRequestHandler):
    """A server that speaks no HTTP/2."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@check("a whole repository is served by the names in it, ready and live under load")
def whole_repository(kubelet):
    seconds = kubelet.start()
    port = kubelet.pod.port("h2c")
    for name in ("digits", "identity", "slow"):
        expect(peers.ask(port, "GET", f"/v2/models/{name}/ready")[0] == 200, f"{name} is not ready")
    answers_by_name(kubelet.pod, "digits")
    return f"3 models, ready in {seconds:.1f} s"


def evaluated(folder, expression, series, expected):
    """Checks that Prometheus' own engine computes a value for an expression over series. `Refused` with its error."""
    inputs = [{"series": name, "values": f"{value:.0f}"} for name, value in series.items()]
    test = {
        "expr": expression,
        "eval_time": "0",
        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
    }
    file = folder / "test.yml"
    file.write_text(yaml.dump({"tests": [{"interval": "15s", "input_series": inputs, "promql_expr_test": [test]}]}))
    result = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    if result.returncode != 0:
        raise Refused((result.stdout + result.stderr)[-600:])


@check("Prometheus scrapes by the annotations, and the queries that replicas are counted by have a value under load")
def scaling(kubelet, folder):
    pod = kubelet.pod
    annotations = objects.runtimes()["deuteron-triton"]["spec"]["annotations"]
    port, path = int(annotations["prometheus.kserve.io/port"]), annotations["prometheus.kserve.io/path"]
    metric = "nv_inference_pending_request_count"
    clients = 24
    load = Load(pod.port("h2c"), "slow", SLOW_REQUEST, clients)
    light = Load(pod.port("h2c"), "digits", peers.PLAIN_DIGIT, 2)
    looks = []
    for _ in range(8):
        time.sleep(0.1)
        looks.append(scraped(pod, port, path, metric))
    runs = [one for name, one in kubelet.probes.items() if name != "startupProbe"]
    load.stop()
    light.stop()
    expect(not load.lost and not light.lost, f"lost: {load.lost[:2] + light.lost[:2]}")
    waiting = looks[-1]
    slow = next(value for labels, value in waiting.items() if 'model="slow"' in labels)
    expect(clients / 2 < slow < clients, f"{slow} wait of {clients}")
    expect(all(one.is_well for one in runs), "a probe failed under load")
    # Labels that a scrape adds, of two pods that are the same. The queries of KServe's KEDA, the chart's KEDA and its HPA.
    total = 2 * sum(waiting.values())

    def of_pods(*pods):
        return {
            f'{metric}{{{labels},namespace="models",pod="{name}"}}': value
            for name in pods
            for labels, value in waiting.items()
        }

    kserve = objects.scaled_object_of(
        next(e for e in objects.examples() if "autoScaling" in e["spec"].get("predictor", {}))
    )
    chart = objects.of_kind(objects.Tools().rendered("-f", objects.CHART / "ci/node-values.yaml"), "ScaledObject")[0]
    name = chart["spec"]["scaleTargetRef"]["name"]
    told = []
    for scaled, pods in ((kserve, "digits-predictor-7d4b9c6f5"), (chart, f"{name}-7d4b9c6f5")):
        trigger = scaled["spec"]["triggers"][0]["metadata"]
        series = of_pods(f"{pods}-x2x4q", f"{pods}-abcde")
        others = {f'{metric}{{model="m",version="1",namespace="models",pod="unrelated-7d4b9c6f5-x2x4q"}}': 99}
        evaluated(folder, trigger["query"], {**series, **others}, {"{}": total})
        mistyped = trigger["query"].replace(metric, metric[:-1])
        refusal(evaluated, folder, mistyped, series, {"{}": total})
        told.append(math.ceil(total / float(trigger["threshold"])))
    rule = yaml.safe_load((objects.CHART.parent / "prometheus-adapter.yaml").read_text())["rules"]["custom"][0]
    hpa = objects.of_kind(
        objects.Tools().rendered("-f", objects.CHART / "ci/fetched-values.yaml"), "HorizontalPodAutoscaler"
    )[0]
    expect(hpa["spec"]["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"], "the HPA asks for another metric")
    expect(re.search(rule["name"]["matches"], metric), "the rule is for another metric")
    filled = {"Series": metric, "LabelMatchers": 'namespace="models",pod=~"a|b"', "GroupBy": "pod"}
    query = re.sub(r"<<\.(\w+)>>", lambda match: filled[match[1]], rule["metricsQuery"])
    evaluated(folder, query, of_pods("a", "b"), {f'{{pod="{pod}"}}': total / 2 for pod in ("a", "b")})
    evaluated(folder, rule["seriesQuery"], of_pods("a"), of_pods("a"))
    return (
        f"{slow:.0f} of {clients} wait for a model of 40 ms, 0 for a light one; 2 pods with {total:.0f}: {told[0]} replicas by "
        f"KServe's query, {told[1]} by the chart's, {total / 2:.0f} for each pod by the adapter's; a mistyped query has no value"
    )


def play_runtimes(binary, folder):
    stage = Stage(binary, folder)
    one_model(stage)
    modelcar(stage)
    mistaken_pods(stage)
    arguments(stage)
    one_port(stage)


def play_repository(binary, folder):
    stage = Stage(binary, folder)
    kubelet = Kubelet(stage.pod(service_named("digits", "deuteron-triton"), repository(folder / "repository")))
    try:
        whole_repository(kubelet)
        rights(kubelet)
        scaling(kubelet, folder)
        end(kubelet, 8080)
    finally:
        kubelet.kill()


# -- KServe's agent


class Agent:
    """Brings models into a folder and asks for load, deletes them and asks for unload; once each."""

    def __init__(self, folder):
        self.folder = folder

    def add(self, name, source):
        target = self.folder / name
        shutil.copytree(source, target)
        (target / "SUCCESS.0a1b2c").write_text('{"storageUri":"s3://models/m","framework":"onnx","memory":"64Mi"}')
        return self.post(name, "load")

    def remove(self, name):
        shutil.rmtree(self.folder / name)
        return self.post(name, "unload")

    @staticmethod
    def post(name, verb):
        return peers.ask(
            8080, "POST", f"/v2/repository/models/{name}/{verb}", b"{}", {"Content-Type": "application/json"}
        )


def states():
    index = json.loads(peers.ask(8080, "POST", "/v2/repository/index", b"{}")[1])
    return {entry["name"]: entry["state"] for entry in index}


@check("KServe's agent loads and unloads models of one server by the repository API")
def agent_loads(kubelet, agent, sources):
    seconds = kubelet.start()
    for name in ("digits", "letters"):
        status, body = agent.add(name, sources[name])
        expect(status == 200, f"load of {name}: {status} {body}")
    answers_by_name(kubelet.pod, "digits")
    answers_by_name(kubelet.pod, "letters")
    status, body = agent.add("broken", sources["broken"])
    expect(status != 200 and states()["broken"] == "UNAVAILABLE", f"a file that is no model: {status}")
    expect(peers.ask(8080, "GET", "/v2/health/ready")[0] == 200, "not ready because of one model")
    load = Load(8080, "digits", peers.PLAIN_DIGIT, 2)
    time.sleep(0.3)
    status, _ = agent.remove("letters")
    expect(status == 200, f"unload after the files went: {status}")
    expect(
        peers.ask(8080, "POST", "/v2/models/letters/infer", peers.PLAIN_DIGIT)[0] in (400, 404),
        "letters is still served",
    )
    status, _ = agent.add("letters", sources["letters"])
    load.stop()
    expect(status == 200 and not load.lost, f"{status}, lost {load.lost[:2]}")
    return (
        f"ready with none in {seconds:.1f} s; 2 loaded, 1 broken refused, 1 unloaded and loaded again; "
        f"0 of {load.answered} requests lost"
    )


@check("a container that is started again has the models that the agent brought before")
def agent_restart(kubelet, pod):
    kubelet.kill()
    again = Kubelet(pod)
    try:
        seconds = again.start()
        found = states()
        expect(found == {"broken": "UNAVAILABLE", "digits": "READY", "letters": "READY"}, f"{found}")
        answers_by_name(pod, "digits")
    finally:
        again.kill()
    return f"2 models after SIGKILL, ready in {seconds:.1f} s; the broken one keeps none from serving"


def play_agent(binary, folder):
    stage = Stage(binary, folder)
    sources = {
        "digits": DIGITS,
        "letters": copied(DIGITS, folder / "sources/letters", "1"),
        "broken": copied(DIGITS, folder / "sources/broken", "1"),
    }
    (sources["broken"] / "1/model.onnx").write_bytes(b"no model")
    models = folder / "models"
    models.mkdir()
    pod = stage.pod(example("several"), models)
    kubelet = Kubelet(pod)
    try:
        agent_loads(kubelet, Agent(models), sources)
        agent_restart(kubelet, pod)
    finally:
        kubelet.kill()

"""The chart's part of the contract: pods of the Deployment that helm makes, with its ConfigMap and Secrets, by its Services."""

import http.client
import json
import re
import ssl
import subprocess
import time

import grpc

import node
import objects
import peers
from checks import ROOT, Stage, check, end, expect, repository, rights, scraped
from node import Kubelet, Pod


def chart_pod(stage, values, models, secrets=None):
    """A pod of the chart's Deployment, with its ConfigMap and Secrets mounted, and the Services by their names."""
    made = objects.Tools().rendered("-f", objects.CHART / f"ci/{values}-values.yaml")
    spec = objects.of_kind(made, "Deployment")[0]["spec"]["template"]["spec"]
    volumes = {}
    for volume in spec["volumes"]:
        folder = volumes[volume["name"]] = stage.folder / values / volume["name"]
        if volume["name"] == "models":
            volumes["models"] = models
            continue
        folder.mkdir(parents=True)
        if "configMap" in volume:
            node.mount_changing_files(folder, objects.of_kind(made, "ConfigMap")[0]["data"], 0o644)
        else:
            mode, group = volume["secret"]["defaultMode"], spec["securityContext"]["fsGroup"]
            node.mount_changing_files(folder, secrets[volume["name"]], mode, group)
    pod = Pod(stage.image, spec, volumes, "deuteron-6c9d8b7f5d-abcde")
    return pod, {service["metadata"]["name"]: service for service in objects.of_kind(made, "Service")}


def target(pod, service, port):
    """The target of a Service's port."""
    return pod.port(next(entry["targetPort"] for entry in service["spec"]["ports"] if entry["name"] == port))


@check("a pod of the chart serves by its Services, and tells its name")
def chart_serves(kubelet, services):
    seconds, pod = kubelet.start(), kubelet.pod
    name = json.loads(peers.ask(target(pod, services["deuteron"], "http"), "GET", "/v2")[1])["name"]
    expect(name == pod.name, f"the server's name is {name}")
    count = 0
    for service, port in (
        ("deuteron", "http"),
        ("deuteron", "grpc"),
        ("deuteron-headless", "grpc"),
        ("deuteron-headless", "http"),
    ):
        at = target(pod, services[service], port)
        status, body = peers.ask(at, "POST", "/v2/models/digits/infer", peers.DIGIT)
        expect(status == 200 and peers.digit_of(body) == peers.SEVEN, f"{service} {port}: {status} {body[:200]}")
        with grpc.insecure_channel(f"127.0.0.1:{at}") as channel:
            message = channel.unary_unary(peers.INFER)(peers.digit_request("digits"), timeout=10)
        expect(peers.digit_of_response(message) == peers.SEVEN, "gRPC: another digit")
        count += 2
    metrics = scraped(pod, target(pod, services["deuteron"], "metrics"), "/metrics", "nv_inference_request_success")
    counted = sum(metrics.values())
    expect(counted == count, f"{counted} of {count} requests are counted")
    return f"ready in {seconds:.1f} s; REST and gRPC by 2 Services, {count} requests, all counted; the name is {name}"


@check("with TLS and keys: probes by HTTPS, a key is needed, and a changed Secret counts without a restart")
def chart_is_guarded(kubelet, key, metrics_key, swap):
    seconds, pod = kubelet.start(), kubelet.pod
    context = ssl.create_default_context(cafile=ROOT / "tests/tls/authority.pem")

    def status_with(header):
        connection = http.client.HTTPSConnection("localhost", 8000, timeout=10, context=context)
        try:
            connection.request("POST", "/v2/models/digits/infer", peers.DIGIT, header)
            return connection.getresponse().status
        finally:
            connection.close()

    told = [status_with({}), status_with({"Authorization": f"Bearer {key}"})]
    expect(told == [401, 200], f"without and with a key: {told}")
    expect(peers.ask(8002, "GET", "/metrics")[0] == 401, "metrics without a key")
    # As the ServiceMonitor has Prometheus ask.
    scraped(pod, 8002, "/metrics", "nv_inference_request_success", {"Authorization": f"Bearer {metrics_key}"})
    new, begun = swap(), time.monotonic()
    node.wait_until("the new key", lambda: status_with({"Authorization": f"Bearer {new}"}) == 200, 8)
    taken = time.monotonic() - begun
    expect(status_with({"Authorization": f"Bearer {key}"}) == 401, "the old key")
    return f"ready in {seconds:.1f} s; 401 without a key, 200 with one; a new key in the Secret counted after {taken:.1f} s"


def made_key(binary, name, *classes):
    result = subprocess.run(
        [binary, "key", name, *(f"--class={c}" for c in classes)], check=True, capture_output=True, text=True
    )
    return re.search(r"dt_\S+", result.stderr)[0], result.stdout


def play_chart(binary, folder):
    stage = Stage(binary, folder)
    models = repository(folder / "models")
    pod, services = chart_pod(stage, "claim", models)
    kubelet = Kubelet(pod)
    try:
        chart_serves(kubelet, services)
        rights(kubelet)
        end(kubelet, target(pod, services["deuteron"], "http"))
    finally:
        kubelet.kill()


def play_guarded(binary, folder):
    stage = Stage(binary, folder)
    (key, entry), (metrics_key, metrics_entry) = (
        made_key(binary, "shop", "infer", "read"),
        made_key(binary, "prometheus", "metrics"),
    )
    tls = {
        "tls.crt": (ROOT / "tests/tls/server.pem").read_text(),
        "tls.key": (ROOT / "tests/tls/server.key").read_text(),
    }
    secrets = {"keys": {"keys.toml": entry + metrics_entry}, "tls": tls}
    pod, _ = chart_pod(stage, "guarded", repository(folder / "models"), secrets)

    def swap():
        new, text = made_key(binary, "shop", "infer", "read")
        node.mount_changing_files(pod.volumes["keys"], {"keys.toml": text + metrics_entry}, 0o440, 65532)
        return new

    kubelet = Kubelet(pod)
    try:
        chart_is_guarded(kubelet, key, metrics_key, swap)
    finally:
        kubelet.kill()

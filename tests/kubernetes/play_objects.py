"""The part of the contract that starts nothing: the objects, their schemas, and mistakes that are refused."""

import copy
import functools
import json
import re
import subprocess

import yaml

import objects
from checks import check, expect, refusal


def changed(document, path, value):
    """A copy with one field changed, or taken away, in one container at most."""
    new = copy.deepcopy(document)
    at = new
    for step in path[:-1]:
        at = at[step]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return new


@check("KServe's schema, its webhook's rules and Knative's take the runtimes")
def runtimes_are_held():
    runtimes = objects.runtimes()
    for runtime in runtimes.values():
        objects.hold_runtime(runtime, runtimes.values())
    return f"{len(runtimes)} runtimes: {', '.join(runtimes)}"


@check("a runtime with one mistake is refused")
def mistaken_runtimes_are_refused():
    runtime = objects.runtimes()["deuteron-onnx"]
    container = ("spec", "containers", 0)
    cases = {
        "autoselect": changed(runtime, ("spec", "supportedModelFormats", 0, "autoselect"), True),
        "protocl": changed(runtime, (*container, "ports", 0, "protocl"), "TCP"),
        "lots": changed(runtime, (*container, "startupProbe", "failureThreshold"), "lots"),
        "kserve-container": changed(runtime, (*container, "name"), "deuteron"),
        "lifecycle": changed(runtime, (*container, "lifecycle"), {"preStop": {"sleep": {"seconds": 5}}}),
        "one port": changed(
            runtime,
            (*container, "ports"),
            [{"name": n, "containerPort": p} for n, p in (("h2c", 8080), ("metrics", 8002))],
        ),
        "is not the container's": changed(runtime, (*container, "livenessProbe", "httpGet", "port"), 8002),
        "kserve-openvino": changed(runtime, ("spec", "supportedModelFormats", 0, "priority"), 2),
        "containers": changed(runtime, ("spec", "containers"), None),
    }
    for word, case in cases.items():
        text = refusal(objects.hold_runtime, case, [])
        expect(word in text, f"'{word}' is not in '{text}'")
    return f"{len(cases)} of {len(cases)} mistakes, each by its name"


@check("KServe's and KEDA's schemas take the examples, and what KServe makes of them scales")
def examples_are_held():
    examples, made = objects.examples(), []
    for example in examples:
        objects.hold(example)
        if example["kind"] == "InferenceService":
            expect(example["spec"]["predictor"]["model"]["runtime"] in objects.runtimes(), f"the runtime of {example}")
        if example["kind"] == "InferenceService" and "autoScaling" in example["spec"]["predictor"]:
            objects.hold_scaled_object(objects.scaled_object_of(example))
            metric = ("spec", "predictor", "autoScaling", "metrics", 0, "external", "target")
            case = changed(example, metric, {"type": "AverageValue", "averageValue": "16"})
            objects.hold(case)
            expect(
                "threshold 0" in refusal(objects.hold_scaled_object, objects.scaled_object_of(case)),
                "a target that KServe does not read",
            )
            made += [trigger["type"] for trigger in objects.scaled_object_of(example)["spec"]["triggers"]]
    return f"{len(examples)} objects; triggers {' and '.join(made)}; a target that KServe does not read is refused"


@check("no server is killed in its drain")
def drains_fit():
    runtimes, found = objects.runtimes(), set()
    for example in objects.examples():
        if example["kind"] == "InferenceService":
            spec = objects.pod_of(runtimes[example["spec"]["predictor"]["model"]["runtime"]], example)
            found.add(objects.hold_end(spec))
            refusal(objects.hold_end, {**spec, "terminationGracePeriodSeconds": 20})
    return "; ".join(f"{needed} s of {grace} s" for needed, grace in sorted(found)) + "; with 20 s it is refused"


@check("kubectl makes one list of the runtimes, with the image of a registry")
def kustomized(tools):
    made = objects.documents(tools.run("kubectl", "kustomize", objects.KSERVE))
    images = {document["spec"]["containers"][0]["image"] for document in made}
    for document in made:
        objects.hold_runtime(document, made)
    expect(len(made) == len(objects.runtimes()), f"{len(made)} objects")
    expect(images == {"registry.example/deuteron-onnxruntime:0.1.0"}, f"images {images}")
    return f"{len(made)} objects, image {images.pop()}"


@check("helm lints the chart, and Kubernetes' schemas take all that it makes")
def chart_is_held(tools, rendered):
    count = 0
    for path, made in rendered.items():
        tools.run("helm", "lint", "--strict", objects.CHART, "-f", path)
        for document in made:
            objects.hold(document)
        count += len(made)
        hold_parts(made)
    mistaken = changed(
        objects.of_kind(made, "Deployment")[0], ("spec", "template", "spec", "containers", 0, "readynessProbe"), {}
    )
    expect("readynessProbe" in refusal(objects.hold, mistaken), "a mistyped field")
    kinds = {document["kind"] for made in rendered.values() for document in made}
    return f"{len(rendered)} files of values, {count} objects of {len(kinds)} kinds; a mistyped field is refused"


def hold_parts(made):
    """The names by which the objects of a release refer to each other exist."""
    deployment = objects.of_kind(made, "Deployment")[0]
    pod = deployment["spec"]["template"]
    spec, labels = pod["spec"], pod["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    selects = lambda selector: selector.items() <= labels.items()
    expect(selects(deployment["spec"]["selector"]["matchLabels"]), "the Deployment's selector")
    services = objects.of_kind(made, "Service")
    for service in services:
        expect(selects(service["spec"]["selector"]), f"the selector of {service['metadata']['name']}")
        expect(
            all(port["targetPort"] in ports for port in service["spec"]["ports"]),
            f"the ports of {service['metadata']['name']}",
        )
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for document in objects.of_kind(made, kind):
            selector = document["spec"].get("selector", document["spec"].get("podSelector"))
            expect(selects(selector["matchLabels"]), f"the selector of {kind}")
    for policy in objects.of_kind(made, "NetworkPolicy"):
        expect(
            {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == set(ports),
            "the ports of the policy",
        )
    for monitor in objects.of_kind(made, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        scraped = [service for service in services if wanted <= service["metadata"]["labels"].items()]
        expect(len(scraped) == 1, f"{len(scraped)} Services are scraped")
        names = {port["name"] for port in scraped[0]["spec"]["ports"]}
        expect(all(endpoint["port"] in names for endpoint in monitor["spec"]["endpoints"]), "the port that is scraped")
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        for document in objects.of_kind(made, kind):
            expect(
                document["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"], f"the target of {kind}"
            )
            expect("replicas" not in deployment["spec"], "replicas beside an autoscaler")
            if kind == "ScaledObject":
                objects.hold_scaled_object(document)
    volumes = {volume["name"] for volume in spec["volumes"]}
    mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
    expect(mounted == volumes, f"volumes {volumes}, of which {mounted} are mounted")
    expect(spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, "a token or links")
    configured = objects.of_kind(made, "ConfigMap")[0]["data"]["deuteron.toml"]
    drain, rest = (
        int(re.search(rf"^{flag} = (\d+)$", configured, re.M)[1]) for flag in ("drain-delay", "exit-timeout-secs")
    )
    expect(drain + rest + 2.5 <= spec["terminationGracePeriodSeconds"], "the time for the end")


@check("the program takes the flags that the chart writes")
def flags_are_known(binary, rendered, folder):
    told = []
    for path, made in rendered.items():
        file = folder / f"{path.stem}.toml"
        file.write_text(objects.of_kind(made, "ConfigMap")[0]["data"]["deuteron.toml"])
        result = subprocess.run([binary, "config", "check", file], capture_output=True, text=True)
        expect(result.returncode == 0, result.stdout + result.stderr)
        told.append(int(re.search(r"(\d+) flags, no fault", result.stdout)[1]))
    file.write_text("no-such-flag = 1\n")
    expect(
        subprocess.run([binary, "config", "check", file], capture_output=True).returncode != 0,
        "an unknown flag was taken",
    )
    return f"{'+'.join(map(str, told))} flags; an unknown one is refused"


@check("helm refuses values that are none")
def values_are_held(tools):
    models = "models.persistentVolumeClaim=m"
    cases = {
        "replica": [models, "replica=2"],
        "drainDelaySeconds": [models, "drainDelaySeconds=soon"],
        "kind": [models, "autoscaling.kind=vpa"],
        "http-port": [models, "config.http-port=80"],
        "given: none": [],
        "persistentVolumeClaim, hostPath": [models, "models.hostPath=/srv"],
        "digest": [models, "image.digest=latest"],
    }
    for word, values in cases.items():
        text = refusal(tools.rendered, *(f"--set={value}" for value in values))
        expect(word in text, f"'{word}' is not in '{text}'")
    return f"{len(cases)} of {len(cases)} mistakes, each by its name"


@check("helm packs the chart, and kubectl reads the Deployment")
def chart_is_packed(tools, rendered, folder):
    tools.run("helm", "package", objects.CHART, "--destination", folder)
    package = next(folder.glob("deuteron-*.tgz"))
    files = subprocess.run(["tar", "-tzf", package], check=True, capture_output=True, text=True).stdout.split()
    expect("deuteron/values.schema.json" in files and not any("/ci/" in file for file in files), str(files))
    deployment = objects.of_kind(next(iter(rendered.values())), "Deployment")[0]
    read = tools.run(
        "kubectl", "set", "image", "--local", "-f", "-", "deuteron=deuteron:9", "-o", "json", text=yaml.dump(deployment)
    )
    expect(json.loads(read)["spec"]["template"]["spec"]["containers"][0]["image"] == "deuteron:9", read)
    mistaken = changed(deployment, ("spec", "template", "spec", "containers", 0, "ports", 0, "containerPort"), "eighty")
    read_again = functools.partial(tools.run, text=yaml.dump(mistaken))
    refusal(read_again, "kubectl", "set", "image", "--local", "-f", "-", "deuteron=deuteron:9")
    return f"{package.name}, {package.stat().st_size} bytes, {len(files)} files; a port that is no number is refused"


def values_of_guide():
    """The file that docs/guide/kubernetes.md shows."""
    page = (objects.ROOT / "docs/guide/kubernetes.md").read_text()
    return re.search(r"<!-- file: values.yaml -->\n```yaml\n(.*?)```", page, re.S)[1]


def play_objects(binary, folder):
    runtimes_are_held()
    mistaken_runtimes_are_refused()
    examples_are_held()
    drains_fit()
    tools = objects.Tools()
    kustomized(tools)
    guide = folder / "guide-values.yaml"
    guide.write_text(values_of_guide())
    rendered = {path: tools.rendered("-f", path) for path in [*objects.value_files(), guide]}
    chart_is_held(tools, rendered)
    flags_are_known(binary, rendered, folder)
    values_are_held(tools)
    chart_is_packed(tools, rendered, folder)

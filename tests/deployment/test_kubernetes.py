"""The Kubernetes manifests: schemas, commands that services accept, and names, labels and ports that fit together."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from draftwood import health
from draftwood.models import embedded_pair
from draftwood_drafter.config import parse_config as parse_drafter
from draftwood_gateway.config import parse_config as parse_gateway
from draftwood_verifier.config import parse_config as parse_verifier
from tests.deployment.compose_project import COMPOSE, after_launcher
from tests.deployment.manifests import KUBERNETES, Manifest, Pod, config_values, documents, pods, render, selects
from tests.deployment.promql import exposed_series

VERSION = "1.33"
OVERLAYS = ["base", "tls"]
LWS_SCHEMA = json.loads(Path(__file__).with_name("leaderworkerset.schema.json").read_text())
PARSERS: dict[str, Callable[[list[str]], Any]] = {
    "draftwood_verifier": parse_verifier,
    "draftwood_drafter": parse_drafter,
    "draftwood_gateway": parse_gateway,
}
# Set by the LeaderWorkerSet controller, here for a group of one.
LWS_VALUES = {"LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "verifier-0.verifier"}
MODEL_FOLDERS = {"/models/target": str(embedded_pair().target), "/models/draft": str(embedded_pair().drafter)}


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(KUBERNETES / request.param)


@pytest.fixture
def base() -> list[Manifest]:
    return render(KUBERNETES / "base")


def named(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == kind}


def expanded(pod: Pod) -> list[str]:
    """The command with variables replaced as the kubelet does; an unknown one fails the test."""
    own = {entry["name"]: entry.get("value", "a-name") for entry in pod.container.get("env", ())}
    values = {**config_values(), **own, **(LWS_VALUES if pod.name.startswith("verifier") else {})}

    def value(match: re.Match[str]) -> str:
        assert match[1] in values, f"{pod.name}: {match[0]} is not in its environment"
        return values[match[1]]

    return [re.sub(r"\$\((\w+)\)", value, word) for word in pod.container["command"]]


def parsed(pod: Pod) -> Any:
    module, arguments = after_launcher(expanded(pod))
    outside = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        outside.append(flag + equals + MODEL_FOLDERS.get(value, value))
    return PARSERS[module](outside)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def probe_arguments(pod: Pod) -> list[tuple[str, dict[str, Any]]]:
    kinds = ("startupProbe", "readinessProbe", "livenessProbe")
    return [(kind, pod.container[kind]) for kind in kinds if kind in pod.container]


def test_objects_follow_their_schemas(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if manifest["kind"] == "LeaderWorkerSet":
            jsonschema.validate(manifest, LWS_SCHEMA)
            for role in ("leaderTemplate", "workerTemplate"):
                template = manifest["spec"]["leaderWorkerTemplate"][role]
                wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": role}, "template": template}
                kubernetes_validate.validate(wrapped, VERSION, strict=True)
        else:
            kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_every_file_is_used() -> None:
    for overlay in OVERLAYS:
        folder = KUBERNETES / overlay
        kustomization = documents(folder / "kustomization.yaml")[0]
        used = {*kustomization["resources"], *kustomization.get("configurations", ())}
        used |= {patch["path"] for patch in kustomization.get("patches", ())}
        assert {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"} == used - {"../base"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_builds_it(overlay: str) -> None:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is missing, which carries kustomize; the other tests put the files together themselves")
    command = [program, "kustomize", str(KUBERNETES / overlay)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (config_map,) = set(re.findall(r"name: (draftwood-\w{10})\n", built.stdout))
    referring = len([pod for pod in pods(render(KUBERNETES / overlay)) if "envFrom" in pod.container])
    # Each pod names the map by its content's hash, and so does the map itself.
    assert built.stdout.count(f"name: {config_map}\n") == referring + 1
    assert not re.findall(r"image: draftwood-\w+\n", built.stdout)


def test_services_accept_their_commands(manifests: list[Manifest]) -> None:
    secure = any("tls-certificate" in json.dumps(manifest) for manifest in manifests)
    names = set()
    for pod in pods(manifests):
        config = parsed(pod)
        names.add(pod.name)
        assert (config.tls.certificate != "") == secure, pod.name
        mounted = {mount["mountPath"] for mount in pod.container["volumeMounts"]}
        for word in expanded(pod):
            value = word.partition("=")[2]
            assert not value.startswith("/") or any(value.startswith(path + "/") for path in mounted), word
    assert names == {"verifier leader", "verifier worker", "drafter", "gateway"}


def test_probes_ask_where_the_service_listens(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        config = parsed(pod)
        address = getattr(config, "listen", None) or config.grpc
        checks = probe_arguments(pod)
        assert bool(checks) == (pod.name != "verifier worker")
        for kind, probe in checks:
            if "exec" in probe:
                assert probe["exec"]["command"][:3] == ["python", "-m", "draftwood.health"]
                asked = health.parse_arguments(probe["exec"]["command"][3:])
                assert (port_of(asked.address), asked.ca) == (port_of(address), "/tls/ca.crt"), kind
                assert asked.timeout_s < probe["timeoutSeconds"], kind
            elif "grpc" in probe:
                assert probe["grpc"]["port"] == port_of(address), kind
                assert config.tls.certificate == "", "the kubelet's gRPC probes know no TLS"
            else:
                assert probe["httpGet"]["path"] == "/healthz"
                assert probe["httpGet"].get("scheme", "HTTP") == ("HTTPS" if config.tls.certificate else "HTTP")


def test_leader_and_workers_are_one_group(manifests: list[Manifest]) -> None:
    found = {pod.name: pod for pod in pods(manifests)}
    leader, worker = found["verifier leader"], found["verifier worker"]
    for key in ("command", "envFrom", "image", "resources", "securityContext", "volumeMounts"):
        assert leader.container[key] == worker.container[key], key
    rest = {key: value for key, value in leader.spec.items() if key != "containers"}
    assert rest == {key: value for key, value in worker.spec.items() if key != "containers"}
    gpus = leader.container["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == config_values()["RANKS_PER_POD"]


def test_running_requests_end_before_the_kill(base: list[Manifest]) -> None:
    for pod in pods(base):
        drain_s = getattr(parsed(pod), "drain_s", 0.0)
        hook = pod.container.get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
        pause_s = float(hook["exec"]["command"][-1])
        assert drain_s + pause_s < pod.spec["terminationGracePeriodSeconds"], pod.name


def test_pods_are_confined(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        assert pod.spec["automountServiceAccountToken"] is False, pod.name
        assert pod.spec["securityContext"]["runAsNonRoot"] is True, pod.name
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, pod.name
        assert pod.container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, pod.name
        assert {"memory", "ephemeral-storage"} <= set(pod.container["resources"]["limits"]), pod.name


def test_metrics_are_where_annotations_and_policies_say(base: list[Manifest]) -> None:
    ingress = named(base, "NetworkPolicy")["everybody"]["spec"]["ingress"]
    (allowed_port,) = {entry["port"] for rule in ingress for entry in rule["ports"]}
    for pod in pods(base):
        assert port_of(parsed(pod).metrics) == allowed_port, pod.name


def test_what_the_images_keep_is_on_a_volume(base: list[Manifest]) -> None:
    """The root is read-only, so the place that the Dockerfile names must be mounted."""
    (kept,) = set(re.findall(r"TRITON_CACHE_DIR=(\S+)/triton", (COMPOSE / "Dockerfile").read_text()))
    for pod in pods(base):
        mounted = {mount["mountPath"] for mount in pod.container["volumeMounts"] if not mount.get("readOnly")}
        assert (kept in mounted) == (pod.name != "gateway"), pod.name


def test_selectors_find_their_pods(base: list[Manifest]) -> None:
    labels = {pod.name: pod.labels for pod in pods(base)}
    for name, deployment in named(base, "Deployment").items():
        assert selects(deployment["spec"]["selector"], labels[name])
    (service,) = named(base, "Service").values()
    assert selects({"matchLabels": service["spec"]["selector"]}, labels["gateway"])
    container = next(pod for pod in pods(base) if pod.name == "gateway").container
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= {port["name"] for port in container["ports"]}
    for name, budget in named(base, "PodDisruptionBudget").items():
        found = [pod for pod, its in labels.items() if selects(budget["spec"]["selector"], its)]
        assert found == ["verifier leader" if name == "verifier" else name]
    (scaler,) = named(base, "HorizontalPodAutoscaler").values()
    target = scaler["spec"]["scaleTargetRef"]
    assert "replicas" not in named(base, target["kind"])[target["name"]]["spec"]
    assert scaler["spec"]["minReplicas"] > 1


def test_who_dials_is_let_through(base: list[Manifest]) -> None:
    """Both ends of each connection: the caller's egress and the listener's ingress name its port."""
    policies = named(base, "NetworkPolicy")
    found = {pod.name: pod for pod in pods(base)}
    verifier = found["verifier leader"]
    port = port_of(parsed(verifier).listen)
    for name in ("gateway", "drafter"):
        config = parsed(found[name])
        dialled = config.verifier if isinstance(config.verifier, tuple) else (config.verifier,)
        assert {address.rpartition(":")[0] for address in dialled} == {"verifier-0.verifier"}
        assert {port_of(address) for address in dialled} == {port}
        assert allowed(policies, "egress", found[name], verifier, port)
        assert allowed(policies, "ingress", verifier, found[name], port)
    assert allowed(policies, "ingress", verifier, found["verifier worker"], 29500)
    assert not allowed(policies, "ingress", found["drafter"], found["gateway"], 50071)
    assert not allowed(policies, "egress", found["drafter"], found["gateway"], 50051)


def allowed(policies: dict[str, Manifest], direction: str, pod: Pod, peer: Pod, port: int) -> bool:
    """Whether some policy of `pod` lets the connection through; `default-deny` forbids the rest."""
    deny = policies["default-deny"]["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    side = "from" if direction == "ingress" else "to"
    for policy in policies.values():
        if not selects(policy["spec"]["podSelector"], pod.labels):
            continue
        for rule in policy["spec"].get(direction, ()):
            ports = {entry["port"] for entry in rule.get("ports", ())}
            peers = [entry["podSelector"] for entry in rule.get(side, ()) if "podSelector" in entry]
            if (port in ports or not ports) and (side not in rule or any(selects(s, peer.labels) for s in peers)):
                return True
    return False


def test_the_autoscaler_reads_what_the_adapter_gives(base: list[Manifest]) -> None:
    adapter = documents(KUBERNETES / "prometheus-adapter.yaml")[0]["rules"]
    given = {kind: {rule["name"]["as"] for rule in rules} for kind, rules in adapter.items()}
    (scaler,) = named(base, "HorizontalPodAutoscaler").values()
    read: dict[str, set[str]] = {"external": set(), "custom": set()}
    for metric in scaler["spec"]["metrics"]:
        kind = "external" if metric["type"] == "External" else "custom"
        read[kind].add(metric[metric["type"].lower()]["metric"]["name"])
    assert read == given
    series = exposed_series()
    for rule in [rule for rules in adapter.values() for rule in rules]:
        assert rule["seriesQuery"].partition("{")[0] in series

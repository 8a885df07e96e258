"""The Kubernetes manifests as kustomize puts them together, and the pods in them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from tests.deployment.compose_project import COMPOSE

KUBERNETES = COMPOSE / "kubernetes"
Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def render(folder: Path) -> list[Manifest]:
    """Resources with patches applied; names, labels and image tags are left as they are."""
    kustomization = documents(folder / "kustomization.yaml")[0]
    manifests: list[Manifest] = []
    for name in kustomization.get("resources", ()):
        path = folder / name
        manifests += render(path.resolve()) if path.is_dir() else documents(path)
    for patch in kustomization.get("patches", ()):
        wanted = (patch["target"]["kind"], patch["target"]["name"])
        index = next(i for i, m in enumerate(manifests) if (m["kind"], m["metadata"]["name"]) == wanted)
        operations = yaml.safe_load((folder / patch["path"]).read_text())
        manifests[index] = jsonpatch.apply_patch(manifests[index], json.dumps(operations))
    return manifests


def config_values() -> dict[str, str]:
    """What every pod finds in its environment."""
    generator = documents(KUBERNETES / "base" / "kustomization.yaml")[0]["configMapGenerator"][0]
    return dict(line.split("=", 1) for line in generator["literals"])


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A template; `name` is that of its workload and, within a set, the role."""

    name: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.spec["containers"]
        return dict(container)


def pods(manifests: list[Manifest]) -> Iterator[Pod]:
    for manifest in manifests:
        name, spec = manifest["metadata"]["name"], manifest.get("spec", {})
        group = spec.get("leaderWorkerTemplate", {})
        templates = {name: spec.get("template")} if manifest["kind"] == "Deployment" else {}
        templates |= {f"{name} {role}": group.get(f"{role}Template") for role in ("leader", "worker")}
        for role, template in templates.items():
            if template:
                yield Pod(name=role, labels=template["metadata"]["labels"], spec=template["spec"])


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    """A label selector with matchLabels, or with expressions of the operator In."""
    wanted = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )

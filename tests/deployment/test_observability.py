"""Prometheus, Grafana and the collector: their own checker where there is one, and that all names fit together."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deployment.compose_project import COMPOSE, Service, command_of, read_project
from tests.deployment.promql import complaints, exposed_series

OBSERVABILITY = COMPOSE / "observability"
DASHBOARDS = sorted((OBSERVABILITY / "grafana" / "dashboards").glob("*.json"))
PROVISIONING = OBSERVABILITY / "grafana" / "provisioning"
RULES = OBSERVABILITY / "rules.yaml"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    """The CPU profile beside the observers."""
    found: dict[str, Service] = read_project(["cpu", "observability"])["services"]
    return found


def promtool(*arguments: str, cwd: Path) -> None:
    """Run Debian's promtool; where it is missing, CI fails and others are told."""
    program = shutil.which("promtool")
    if program is None:
        remedy = "promtool is missing: apt-get install prometheus"
        pytest.fail(remedy) if os.environ.get("CI") else pytest.skip(remedy)
    result = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Panel titles with one expression each, Grafana's variables replaced by what they may stand for."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m")
            for variable in dashboard["templating"]["list"]:
                text = text.replace(f"${variable['name']}", ".+")
            assert "$" not in text, f"{panel['title']}: an unknown variable in {target['expr']}"
            yield panel["title"], text


def test_prometheus_accepts_its_configuration() -> None:
    promtool("check", "config", "prometheus.yaml", cwd=OBSERVABILITY)


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).with_name("rules_test.yaml"), tmp_path)
    promtool("test", "rules", "rules_test.yaml", cwd=tmp_path)


def test_rules_name_what_is_exposed() -> None:
    series = exposed_series()
    rules = [rule for group in load(RULES)["groups"] for rule in group["rules"]]
    of_services = [rule for rule in rules if "up{" not in rule["expr"] and "draftwood:kv" not in rule["expr"]]
    assert len(of_services) > 5
    for rule in of_services:
        assert list(complaints(rule["expr"], series)) == [], rule


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_name_what_is_exposed(path: Path) -> None:
    series = exposed_series()
    checked = list(expressions(json.loads(path.read_text())))
    assert len(checked) > 10
    for title, expression in checked:
        assert list(complaints(expression, series)) == [], title


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_prometheus_understands_every_panel(path: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{index}", "expr": expression}
        for index, (_, expression) in enumerate(expressions(json.loads(path.read_text())))
    ]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", "panels.yaml", cwd=tmp_path)


def test_what_is_exposed_is_shown() -> None:
    """Nobody looks at a metric that no panel reads. The conventions' own are there for dashboards that know them."""
    shown = "\n".join(text for path in DASHBOARDS for _, text in expressions(json.loads(path.read_text())))
    rest = {name for name in exposed_series() if name.rpartition("_")[0] not in shown and name not in shown}
    assert {name for name in rest if not name.startswith("gen_ai_server_")} == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_are_whole(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    sources = {source["uid"] for source in load(PROVISIONING / "datasources" / "draftwood.yaml")["datasources"]}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    for panel in panels(dashboard):
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert {panel["datasource"]["uid"]} | {target["datasource"]["uid"] for target in panel["targets"]} <= sources


def test_grafana_finds_its_dashboards(services: dict[str, Service]) -> None:
    uids = [json.loads(path.read_text())["uid"] for path in DASHBOARDS]
    assert len(uids) == len(set(uids)) >= 2
    grafana = services["grafana"]
    mounts = {volume["target"]: Path(volume["source"]) for volume in grafana["volumes"]}
    (provider,) = load(PROVISIONING / "dashboards" / "draftwood.yaml")["providers"]
    folder = provider["options"]["path"]
    assert mounts[folder] == DASHBOARDS[0].parent
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == folder
    assert (mounts[folder] / home.name).exists()


def test_observers_call_services_that_exist(services: dict[str, Service]) -> None:
    sources = load(PROVISIONING / "datasources" / "draftwood.yaml")["datasources"]
    collector = load(OBSERVABILITY / "otel-collector.yaml")
    called = [urlsplit(source["url"]).hostname for source in sources]
    called += [exporter["endpoint"].rpartition(":")[0] for exporter in collector["exporters"].values()]
    assert called
    assert set(called) <= set(services)


def test_prometheus_scrapes_every_service(services: dict[str, Service]) -> None:
    jobs = load(OBSERVABILITY / "prometheus.yaml")["scrape_configs"]
    names = {name for job in jobs for sd in job.get("dns_sd_configs", ()) for name in sd["names"]}
    assert names == {"gateway", "verifier", "drafter"}
    gpu = read_project(["gpu"])["services"]
    aliases = {alias for service in gpu.values() for alias in (service["networks"]["default"] or {}).get("aliases", ())}
    ports = {sd["port"] for job in jobs for sd in job.get("dns_sd_configs", ())}
    for name in names:
        assert [word for word in command_of(services[name]) if word.startswith("--metrics=")] == [
            f"--metrics=0.0.0.0:{port}" for port in ports
        ]
    assert names <= set(services)
    assert names <= {*gpu, *aliases}


def test_the_collector_uses_what_it_defines(services: dict[str, Service]) -> None:
    collector = load(OBSERVABILITY / "otel-collector.yaml")
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert pipeline[kind]
            assert set(pipeline[kind]) <= set(collector[kind])
        assert pipeline["processors"][0] == "memory_limiter"
    used = {name for pipeline in collector["service"]["pipelines"].values() for name in pipeline["exporters"]}
    assert used == set(collector["exporters"])
    command = services["otel-collector"]["command"]
    mounts = {volume["target"]: Path(volume["source"]) for volume in services["otel-collector"]["volumes"]}
    assert mounts[command[0].removeprefix("--config=")] == OBSERVABILITY / "otel-collector.yaml"

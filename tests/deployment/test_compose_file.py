"""The compose files: Docker Compose accepts them, services accept their commands, every container is confined."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwood import health
from draftwood_drafter.config import parse_config as parse_drafter
from draftwood_gateway.config import parse_config as parse_gateway
from draftwood_verifier.config import parse_config as parse_verifier
from tests.deployment.compose_project import (
    COMPOSE,
    PLAIN,
    SECURE,
    Service,
    after_launcher,
    command_of,
    module_and_arguments,
    read_project,
)

PARSERS: dict[str, Callable[[list[str]], Any]] = {
    "draftwood_verifier": parse_verifier,
    "draftwood_drafter": parse_drafter,
    "draftwood_gateway": parse_gateway,
}
EVERYTHING = ["cpu", "gpu", "observability"]
OURS = {"cpu": ["verifier", "drafter", "gateway"], "gpu": ["verifier-gpu", "drafter-gpu", "gateway"]}
ALL_OURS = sorted({name for names in OURS.values() for name in names})


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    found: dict[str, Service] = read_project(EVERYTHING)["services"]
    return found


def test_profiles_bring_up_what_they_say() -> None:
    for profile, names in OURS.items():
        assert sorted(read_project([profile])["services"]) == sorted(names)
    observers = {"otel-collector", "jaeger", "prometheus", "grafana"}
    assert set(read_project(["cpu", "observability"])["services"]) == {*OURS["cpu"], *observers}


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_the_secure_overlay_adds_flags_and_their_files(profile: str, tmp_path: Path) -> None:
    plain = read_project([profile])["services"]
    secure = read_project([profile], [PLAIN, SECURE], {"DRAFTWOOD_SECRETS": str(tmp_path)})
    for name in OURS[profile]:
        service = secure["services"][name]
        assert command_of(service)[: len(command_of(plain[name]))] == command_of(plain[name])
        mounted = {secret["target"] for secret in service["secrets"]}
        words = [*command_of(service), *service["healthcheck"]["test"]]
        used = {word.rpartition("=")[2] for word in words if "/run/secrets/" in word}
        assert used == mounted
        for secret in service["secrets"]:
            assert Path(secure["secrets"][secret["source"]]["file"]).parent == tmp_path


@pytest.mark.parametrize("name", ALL_OURS)
@pytest.mark.parametrize("secure", [False, True])
def test_each_service_accepts_its_command_and_its_probe(name: str, secure: bool, tmp_path: Path) -> None:
    files = [PLAIN, SECURE] if secure else [PLAIN]
    service = read_project(EVERYTHING, files, {"DRAFTWOOD_SECRETS": str(tmp_path)})["services"][name]
    module, arguments = after_launcher(command_of(service))
    sources = {volume["target"]: str(volume["source"]) for volume in service["volumes"]}
    outside = [sources.get(word.rpartition("=")[2], word.rpartition("=")[2]) for word in arguments]
    config = PARSERS[module](
        [word.rpartition("=")[0] + "=" + value for word, value in zip(arguments, outside, strict=True)]
    )
    module, arguments = module_and_arguments(service["healthcheck"]["test"][1:])
    assert module == "draftwood.health"
    assert (config.tls.certificate != "") == secure
    probe = health.parse_arguments(arguments)
    listening = getattr(config, "listen", None) or config.grpc
    assert probe.address == listening.replace("0.0.0.0", "127.0.0.1")
    assert (probe.ca != "") == secure


def test_services_reach_each_other_by_the_names_they_have(services: dict[str, Service]) -> None:
    for profile, names in OURS.items():
        known: dict[str, set[str]] = {}
        for name in names:
            aliases = (services[name]["networks"]["default"] or {}).get("aliases", [])
            ports = {word.rpartition(":")[2] for word in command_of(services[name]) if "=0.0.0.0:" in word}
            known.update(dict.fromkeys((name, *aliases), ports))
        for name in names:
            dialled = [word.partition("=")[2] for word in command_of(services[name]) if word.startswith("--verifier=")]
            for host, _, port in (address.rpartition(":") for address in dialled):
                assert port in known[host], f"{profile}: {name} dials {host}:{port}"


def test_every_container_is_confined(services: dict[str, Service]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert not service.get("privileged"), name
        limits = service["deploy"]["resources"]["limits"]
        assert int(limits["memory"]) > 0, name
        assert limits["pids"] > 0, name
        # A throttled host would leave its GPU idle.
        assert ("cpus" in limits) == (not name.endswith("-gpu")), name
        for port in service.get("ports", ()):
            assert port["host_ip"] == "127.0.0.1", f"{name} is open to the network by default"
        for volume in service.get("volumes", ()):
            assert volume["type"] == "volume" or volume["read_only"], f"{name}: {volume['target']} is writable"


def test_running_requests_end_before_the_kill(services: dict[str, Service]) -> None:
    for name in ALL_OURS:
        drains = [word.partition("=")[2] for word in command_of(services[name]) if word.startswith("--drain-s=")]
        grace = services[name]["stop_grace_period"]
        assert grace.endswith("s")
        assert all(float(drain) < float(grace.removesuffix("s")) for drain in drains), name
        assert drains or name.startswith("drafter"), name


def test_the_gateway_stops_before_the_verifier(services: dict[str, Service]) -> None:
    for verifier in ("verifier", "verifier-gpu"):
        assert services["gateway"]["depends_on"][verifier] == {"condition": "service_started", "required": False}


def test_images_have_a_version(services: dict[str, Service]) -> None:
    for name, service in services.items():
        _, colon, tag = service["image"].rpartition(":")
        assert colon, name
        assert any(character.isdigit() for character in tag), name


def test_no_gpu_is_given_twice(services: dict[str, Service]) -> None:
    given = []
    for name in ("verifier-gpu", "drafter-gpu"):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia"
        assert device["capabilities"] == ["gpu"]
        given += device["device_ids"][0].split(",")
    assert sorted(given) == ["0", "1"]
    for name in OURS["cpu"]:
        assert "devices" not in services[name]["deploy"]["resources"].get("reservations", {})


def test_mounted_files_exist(services: dict[str, Service]) -> None:
    mounted = [v["source"] for service in services.values() for v in service.get("volumes", ()) if v["type"] == "bind"]
    assert any(Path(source).is_relative_to(COMPOSE / "observability") for source in mounted)
    for source in mounted:
        assert Path(source).exists(), source


def test_what_the_images_keep_is_on_a_volume(services: dict[str, Service]) -> None:
    """The root is read-only, so the place that the Dockerfile names must be mounted."""
    (kept,) = set(re.findall(r"TRITON_CACHE_DIR=(\S+)/triton", (COMPOSE / "Dockerfile").read_text()))
    for name in ("verifier", "drafter", "verifier-gpu", "drafter-gpu"):
        volumes = [volume["target"] for volume in services[name]["volumes"] if volume["type"] == "volume"]
        assert volumes == [kept], name

"""The compose files as Docker Compose itself reads them, and their services as processes on loopback."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from draftwood.processes import ServiceProcess, start_service

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
PLAIN = COMPOSE / "docker-compose.yaml"
SECURE = COMPOSE / "docker-compose.secure.yaml"
_DOCKER_COMPOSE = Path(sys.executable).with_name("docker-compose")

Service = dict[str, Any]


def read_project(
    profiles: Sequence[str], files: Sequence[Path] = (PLAIN,), variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What `docker compose config` makes of the files; fails the test with its message when it refuses them."""
    command = [str(_DOCKER_COMPOSE)]
    for file in files:
        command += ["--file", str(file)]
    for profile in profiles:
        command += ["--profile", profile]
    # Nothing of the caller's environment or .env file may leak in.
    command += ["--env-file", "/dev/null", "config", "--format", "json"]
    result = subprocess.run(command, env=dict(variables or {}), capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.fail(f"docker compose config: {result.stderr}")
    project: dict[str, Any] = json.loads(result.stdout)
    return project


def command_of(service: Service) -> list[str]:
    """What the container runs."""
    return [*service.get("entrypoint", ()), *(service.get("command") or ())]


def module_and_arguments(command: Sequence[str]) -> tuple[str, list[str]]:
    """Of a command that begins with `python -m`."""
    assert list(command[:2]) == ["python", "-m"], f"not a Python module: {command}"
    return command[2], list(command[3:])


def after_launcher(command: Sequence[str]) -> tuple[str, list[str]]:
    """The same for the module that torchrun starts, where it does."""
    module, arguments = module_and_arguments(command)
    if module != "torch.distributed.run":
        return module, arguments
    start = arguments.index("-m")
    return arguments[start + 1], arguments[start + 2 :]


class LoopbackProject:
    """Starts services of a project as processes: same commands, same environment; paths, hosts and ports mapped."""

    def __init__(self, project: dict[str, Any]) -> None:
        self._project = project
        self._hosts: dict[str, str] = {}
        self.processes: dict[str, ServiceProcess] = {}

    def start(self, name: str) -> dict[str, str]:
        """Its listening addresses. Hosts that its command names must have been started before."""
        service = self._project["services"][name]
        module, arguments = module_and_arguments(command_of(service))
        with pytest.MonkeyPatch.context() as patch:
            for key, value in service["environment"].items():
                patch.setenv(key, value)
            process = start_service(name, module, [self._mapped(name, argument) for argument in arguments])
        self.processes[name] = process
        self._remember(name, arguments, process)
        return process.addresses

    def probe(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run the service's own health check."""
        test = self._project["services"][name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        module, arguments = module_and_arguments(test[1:])
        command = [sys.executable, "-m", module, *(self._mapped(name, argument) for argument in arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        """In the order in which Docker Compose stops them: who depends on others goes first."""
        for process in reversed(self.processes.values()):
            process.stop()

    def _remember(self, name: str, arguments: Sequence[str], process: ServiceProcess) -> None:
        """Which loopback address stands for NAME:PORT, by its aliases too, and in the service for 127.0.0.1:PORT."""
        network = self._project["services"][name]["networks"]["default"] or {}
        for option, address in process.addresses.items():
            flag = "--listen=" if option == "address" else f"--{option}="
            port = next(word for word in arguments if word.startswith(flag)).rpartition(":")[2]
            self._hosts.update({f"{host}:{port}": address for host in (name, *network.get("aliases", ()))})

    def _mapped(self, name: str, argument: str) -> str:
        flag, equals, value = argument.rpartition("=")
        return flag + equals + self._mapped_value(name, value)

    def _mapped_value(self, name: str, value: str) -> str:
        if value.startswith("0.0.0.0:"):
            return "127.0.0.1:0"
        if value.startswith("127.0.0.1:"):
            return self._hosts[f"{name}:{value.rpartition(':')[2]}"]
        return self._hosts.get(value) or self._outside(name, value)

    def _outside(self, name: str, path: str) -> str:
        """Where a path in the container lies outside it."""
        service = self._project["services"][name]
        for volume in service["volumes"]:
            if path == volume["target"]:
                return str(volume["source"])
        for secret in service.get("secrets", ()):
            if path == secret["target"]:
                return str(self._project["secrets"][secret["source"]]["file"])
        return path

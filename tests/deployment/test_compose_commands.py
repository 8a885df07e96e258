"""The commands of the compose files, started as they stand, serve a completion; with and without TLS and keys."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from draftwood import health
from draftwood_wire.tls import ChannelTls
from draftwood_wire.transport import open_blocking_channel
from draftwood_wire.v1.drafter_service_pb2 import DrafterServiceGetInfoRequest
from draftwood_wire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from tests.deployment.compose_project import PLAIN, SECURE, LoopbackProject, read_project
from tests.deployment.promql import exposed_series
from tests.services.certificates import Authority
from tests.services.processes import wait_for

START_ORDER = ("verifier", "drafter", "gateway")
GPU_START_ORDER = ("verifier-gpu", "drafter-gpu", "gateway")
BODY = {"model": "draftwood", "prompt": "def fibonacci(n):", "max_tokens": 32, "temperature": 0}


@contextmanager
def running(project: LoopbackProject, tls: ChannelTls, names: Sequence[str]) -> Iterator[dict[str, dict[str, str]]]:
    """Addresses of the services, started in this order, once the drafter has joined."""
    try:
        addresses = {name: project.start(name) for name in names}
        with open_blocking_channel(addresses[names[1]]["address"], tls) as channel:
            stub = DrafterServiceStub(channel)
            wait_for(
                lambda: stub.GetInfo(DrafterServiceGetInfoRequest(), timeout=60, wait_for_ready=True).connected,
                "the drafter joins the verifier",
            )
        yield addresses
    finally:
        project.stop()


def check_answer(answer: httpx.Response) -> None:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["choices"][0]["text"]
    assert body["usage"]["completion_tokens"] == BODY["max_tokens"]
    assert body["usage"]["draftwood"]["accepted_nodes"] > 0


def test_the_cpu_profile_serves() -> None:
    project = LoopbackProject(read_project(["cpu"]))
    with running(project, ChannelTls(), START_ORDER) as addresses:
        for name in START_ORDER:
            assert project.probe(name).returncode == health.SERVING
        check_answer(httpx.post(f"http://{addresses['gateway']['http']}/v1/completions", json=BODY, timeout=120))
        exposed = exposed_series()
        for name in START_ORDER:
            page = httpx.get(f"http://{addresses[name]['metrics']}/metrics").text
            scraped = {
                line.partition(" ")[0].partition("{")[0] for line in page.splitlines() if line[:1] not in ("#", "")
            }
            own = {series for series in scraped if series.startswith(("draftwood_", "gen_ai_"))}
            assert own, name
            assert own <= set(exposed), name
    for name in START_ORDER:
        assert project.processes[name].exit_code() == 0
    assert project.probe("verifier").returncode == health.NO_ANSWER


def test_the_gpu_profile_serves_where_there_is_none() -> None:
    """Its commands, torchrun's included, on whatever this machine computes with."""
    variables = {"DRAFTWOOD_DEVICE": "cpu", "DRAFTWOOD_KV_PAGES": "1024", "DRAFTWOOD_CONTEXT_PAGES": "1024"}
    project = LoopbackProject(read_project(["gpu"], variables=variables))
    with running(project, ChannelTls(), GPU_START_ORDER) as addresses:
        for name in GPU_START_ORDER:
            assert project.probe(name).returncode == health.SERVING
        check_answer(httpx.post(f"http://{addresses['gateway']['http']}/v1/completions", json=BODY, timeout=120))


def test_the_secure_overlay_serves_those_with_a_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in START_ORDER:
        authority.issue(name)
    (tmp_path / "api-keys").write_text("a-key\n")
    variables = {"DRAFTWOOD_SECRETS": str(tmp_path)}
    project = LoopbackProject(read_project(["cpu"], [PLAIN, SECURE], variables))
    operator = authority.issue("operator")
    tls = ChannelTls(ca=authority.ca, certificate=operator.certificate, key=operator.key)
    with running(project, tls, START_ORDER) as addresses:
        for name in START_ORDER:
            assert project.probe(name).returncode == health.SERVING, name
        url = f"https://{addresses['gateway']['http']}/v1/completions"
        trust = ssl.create_default_context(cafile=authority.ca)
        header = {"Authorization": "Bearer a-key"}
        check_answer(httpx.post(url, json=BODY, headers=header, verify=trust, timeout=120))
        assert httpx.post(url, json=BODY, verify=trust).status_code == 401
        with pytest.raises(httpx.TransportError):
            httpx.post(url.replace("https:", "http:"), json=BODY)

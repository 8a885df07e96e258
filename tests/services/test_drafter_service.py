"""DrafterService over real gRPC, and the drafter as a process."""

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from draftwood_drafter.__main__ import make_engine, make_hello
from draftwood_drafter.config import DrafterConfig, Head
from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.servicer import DrafterServicer
from draftwood_drafter.session import DraftParams, FeatureRows, Shape
from draftwood_drafter.speculation_client import Backoff, SpeculationClient
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_wire.tensor import tensor_to_proto
from draftwood_wire.transport import Server, open_blocking_channel, open_channel
from draftwood_wire.tree import tree_to_proto
from draftwood_wire.v1 import drafter_service_pb2, sampling_pb2, tensor_pb2
from draftwood_wire.v1.drafter_service_pb2_grpc import (
    DrafterServiceStub,
    add_DrafterServiceServicer_to_server,
)
from tests.unit.drafter.pair import FEATURE_WIDTH, Pair, make_pair

SERVICE = "draftwood_wire.v1.DrafterService"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def config(pair: Pair) -> DrafterConfig:
    # Nothing listens on the discard port: the drafter serves without a verifier.
    return DrafterConfig(
        target=pair.target, draft=pair.draft, verifier="127.0.0.1:9", context_pages=8, page_size=4, id="d", threads=1
    )


@pytest.fixture(scope="module")
def engine(config: DrafterConfig) -> DraftEngine:
    return make_engine(config)


def ask(config: DrafterConfig, engine: DraftEngine, question: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        client = SpeculationClient(
            engine, make_hello(config, engine.model), config.verifier, Backoff(1, 1), DrafterTelemetry(metrics="")
        )
        server = Server("127.0.0.1:0", [SERVICE])
        servicer = DrafterServicer(engine, client, drafter_id=config.id, node_limit=config.node_limit)
        add_DrafterServiceServicer_to_server(servicer, server.grpc)
        await server.start()
        async with open_channel(f"127.0.0.1:{server.port}") as channel:
            await question(DrafterServiceStub(channel))
        await server.stop(0)
        assert engine.cache.pages_free == engine.cache.pages_total
        assert engine.session_count == 0

    asyncio.run(run())


def request(
    *,
    tokens: list[int] | None = None,
    rows: int = 8,
    width: int = FEATURE_WIDTH,
    node_limit: int = 20,
    mode: sampling_pb2.SpeculationMode = sampling_pb2.SPECULATION_MODE_TREE,
    temperature: float = 0.0,
) -> drafter_service_pb2.DraftRequest:
    features = np.random.default_rng(1).normal(size=(rows, width)).astype(np.float32)
    return drafter_service_pb2.DraftRequest(
        token_ids=list(range(9)) if tokens is None else tokens,
        features=tensor_to_proto(features),
        sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=4),
        speculation=sampling_pb2.SpeculationParams(mode=mode, node_limit=node_limit),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    ("mode", "shape"),
    [(sampling_pb2.SPECULATION_MODE_CHAIN, Shape.CHAIN), (sampling_pb2.SPECULATION_MODE_TREE, Shape.TREE)],
)
def test_draft_equals_the_engine(
    config: DrafterConfig,
    engine: DraftEngine,
    mode: sampling_pb2.SpeculationMode,
    shape: Shape,
    temperature: float,
) -> None:
    asked = request(mode=mode, temperature=temperature)
    params = DraftParams(shape=shape, node_limit=20, temperature=asked.sampling.temperature, seed=4)
    features = np.random.default_rng(1).normal(size=(8, FEATURE_WIDTH)).astype(np.float32)
    engine.open(5, list(range(9)), params, decoding=True)
    engine.append([FeatureRows(session_id=5, start=0, features=features)])
    (draft,), _ = engine.draft(engine.ready())
    engine.close(5)

    async def question(stub: Any) -> None:
        assert (await stub.Draft(asked)).tree == tree_to_proto(draft.tree)

    ask(config, engine, question)


def test_no_context_and_no_speculation(config: DrafterConfig, engine: DraftEngine) -> None:
    async def question(stub: Any) -> None:
        alone = await stub.Draft(drafter_service_pb2.DraftRequest(token_ids=[3]))
        assert len(alone.tree.token_ids) == config.node_limit
        off = await stub.Draft(request(mode=sampling_pb2.SPECULATION_MODE_OFF))
        assert len(off.tree.token_ids) == 0

    ask(config, engine, question)


def broken_bytes() -> drafter_service_pb2.DraftRequest:
    wrong = request()
    wrong.features.CopyFrom(tensor_pb2.Tensor(data_type=1, shape=[8, FEATURE_WIDTH], data=b"1234"))
    return wrong


INVALID = grpc.StatusCode.INVALID_ARGUMENT
BAD_REQUESTS = {
    "too few rows": (request(rows=7), INVALID, "features"),
    "wrong width": (request(width=9), INVALID, "features"),
    "bytes that do not fit": (broken_bytes(), INVALID, "features"),
    "no tokens": (request(tokens=[]), INVALID, "token_ids"),
    "token beyond the vocabulary": (request(tokens=[*range(8), 97]), INVALID, "token_ids"),
    "token beyond int32": (request(tokens=[*range(8), 2**32 - 1]), INVALID, "token_ids"),
    "no nodes": (request(node_limit=0), INVALID, "node_limit"),
    "too many nodes": (request(node_limit=257), INVALID, "node_limit"),
    "negative temperature": (request(temperature=-1), INVALID, "temperature"),
    "no temperature": (request(temperature=float("nan")), INVALID, "temperature"),
    "more context than pages": (request(tokens=[0] * 60, rows=59), grpc.StatusCode.RESOURCE_EXHAUSTED, "pages"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_name_the_field(config: DrafterConfig, engine: DraftEngine, case: str) -> None:
    asked, status, field = BAD_REQUESTS[case]

    async def question(stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Draft(asked)
        assert caught.value.code() == status
        assert field in str(caught.value.details())
        await stub.Draft(request())

    ask(config, engine, question)


def test_without_a_head_there_is_no_tree(config: DrafterConfig) -> None:
    headless = dataclasses.replace(config, head=Head.VERIFIER)

    async def question(stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Draft(request())
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "--head verifier" in str(caught.value.details())

    ask(headless, make_engine(headless), question)


def test_info(config: DrafterConfig, engine: DraftEngine) -> None:
    async def question(stub: Any) -> None:
        info = await stub.GetInfo(drafter_service_pb2.DrafterServiceGetInfoRequest())
        assert (info.drafter_id, info.vocab_size, info.block_size, info.hidden_size) == ("d", 97, 8, 64)
        assert list(info.target_layer_ids) == [0, 1, 2]
        assert (info.max_node_limit, info.connected, info.sessions) == (256, False, 0)
        assert (info.context_pages_total, info.context_pages_free) == (8, 8)

    ask(config, engine, question)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_without_a_verifier(pair: Pair, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "draftwood_drafter", "--target", str(pair.target), "--draft", str(pair.draft),
               "--verifier", "127.0.0.1:9", "--listen", "127.0.0.1:0", "--threads", "1"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            listening = json.loads(process.stdout.readline())
            assert listening["event"] == "listening"
            with open_blocking_channel(listening["address"]) as channel:
                health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
                assert health.status == health_pb2.HealthCheckResponse.SERVING
                assert SERVICE in ProtoReflectionDescriptorDatabase(channel).get_services()
                assert len(DrafterServiceStub(channel).Draft(request()).tree.token_ids) == 20
            process.send_signal(number)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_process_with_a_draft_that_does_not_fit(tmp_path_factory: pytest.TempPathFactory) -> None:
    fields = {"mask_token_id": 97, "target_layer_ids": [0, 1]}
    pair = make_pair(tmp_path_factory.mktemp("unfit"), dflash_config=fields)
    command = [sys.executable, "-m", "draftwood_drafter", "--target", str(pair.target), "--draft", str(pair.draft),
               "--verifier", "127.0.0.1:9"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "mask_token_id 97" in done.stderr
    assert "Traceback" not in done.stderr

"""The drafter's stream against a scripted verifier over real gRPC."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.model import DraftModel
from draftwood_drafter.speculation_client import Backoff, FrameQueue, SpeculationClient
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_wire.transport import Server
from draftwood_wire.v1 import tensor_pb2, verifier_service_pb2
from draftwood_wire.v1.verifier_service_pb2_grpc import (
    VerifierServiceServicer,
    add_VerifierServiceServicer_to_server,
)
from tests.unit.drafter.frames import Request, Response, chunk, closed, commits, errors, opened, proposed
from tests.unit.drafter.pair import FEATURE_WIDTH, make_pair

WELCOME = Response(welcome=verifier_service_pb2.Welcome(node_limit=8))
HELLO = verifier_service_pb2.Hello(drafter_id="d", vocab_size=97, target_layer_ids=[0, 1, 2], node_limit=32)


class Stream:
    """One drafter's stream, as the verifier holds it."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.over = asyncio.Event()

    async def send(self, *frames: Response) -> None:
        for frame in frames:
            await self._context.write(frame)

    async def receive(self) -> Request:
        frame = await self._context.read()
        assert isinstance(frame, Request)
        return frame


class ScriptedVerifier(VerifierServiceServicer):
    """Hands every Speculate stream to the test; refuses as many as `refusals` first."""

    def __init__(self) -> None:
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.refusals = 0
        self.hello = HELLO
        self._server: Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> str:
        self._server = Server(address, [])
        add_VerifierServiceServicer_to_server(self, self._server.grpc)
        await self._server.start()
        return f"127.0.0.1:{self._server.port}"

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    async def accept(self) -> Stream:
        """The next stream, after Hello and Welcome."""
        stream = await self._streams.get()
        assert (await stream.receive()).hello == self.hello
        await stream.send(WELCOME)
        return stream

    async def Speculate(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: ARG002, N802
        if self.refusals:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "vocab_size: 97, the target has 98")
        stream = Stream(context)
        await self._streams.put(stream)
        await stream.over.wait()

    def Generate(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def GetLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DraftModel:
    pair = make_pair(tmp_path_factory.mktemp("pair"))
    return load_draft_model(pair.target, pair.draft)


@pytest.fixture
def engine(model: DraftModel) -> DraftEngine:
    return DraftEngine(model, context_pages=16, page_size=4)


Scenario = Callable[[ScriptedVerifier, SpeculationClient], Coroutine[Any, Any, None]]


def play(engine: DraftEngine, scenario: Scenario, hello: verifier_service_pb2.Hello = HELLO) -> None:
    """Run a scenario beside a drafter that dials a scripted verifier."""

    async def run() -> None:
        verifier = ScriptedVerifier()
        verifier.hello = hello
        address = await verifier.start()
        client = SpeculationClient(engine, hello, address, Backoff(0.01, 0.05), DrafterTelemetry(metrics=""))
        async with asyncio.timeout(60):
            dialling = asyncio.create_task(client.run())
            playing = asyncio.create_task(scenario(verifier, client))
            await asyncio.wait([dialling, playing], return_when=asyncio.FIRST_COMPLETED)
            if not dialling.done():
                dialling.cancel()
                await playing
            with suppress(asyncio.CancelledError):
                await dialling
            await verifier.stop()
        engine.cache.check_ledger()
        assert engine.cache.pages_free == engine.cache.pages_total

    asyncio.run(run())


def decoding(session_id: int, length: int) -> list[Response]:
    """Frames of a session whose first token was just committed: `length` tokens, the last is the root."""
    prompt = length - 1
    return [
        opened(session_id, list(range(prompt))),
        chunk(FEATURE_WIDTH, session_id, 0, prompt),
        commits(FEATURE_WIDTH, [(session_id, prompt, [5], 0)]),
    ]


async def wait_until_proposed(stream: Stream, session_id: int, base_len: int) -> int:
    """Read until the proposal for this length; returns how many proposals of the session came on the way."""
    count = 0
    while True:
        found = proposed([await stream.receive()])
        if session_id in found:
            count += 1
            if found[session_id].base_len == base_len:
                return count


def test_a_session_from_hello_to_close(engine: DraftEngine) -> None:
    async def scenario(verifier: ScriptedVerifier, client: SpeculationClient) -> None:
        stream = await verifier.accept()
        await stream.send(*decoding(7, 6))
        first = proposed([await stream.receive()])[7]
        assert (first.base_len, len(first.tree.token_ids)) == (6, 8)
        assert client.connected
        await stream.send(commits(FEATURE_WIDTH, [(7, 6, [1, 2, 3], 3)]))
        assert proposed([await stream.receive()])[7].base_len == 9
        await stream.send(closed(7), *decoding(8, 4))
        assert set(proposed([await stream.receive()])) == {8}
        assert engine.session_count == 1

    play(engine, scenario)


def test_context_request_and_replay(engine: DraftEngine) -> None:
    async def scenario(verifier: ScriptedVerifier, _client: SpeculationClient) -> None:
        stream = await verifier.accept()
        await stream.send(opened(3, list(range(12)), features_from=11))
        request = (await stream.receive()).context_request
        assert (request.session_id, request.from_position) == (3, 0)
        await stream.send(chunk(FEATURE_WIDTH, 3, 0, 6), commits(FEATURE_WIDTH, [(3, 12, [1, 2], 2)]))
        await stream.send(chunk(FEATURE_WIDTH, 3, 6, 5))
        assert proposed([await stream.receive()])[3].base_len == 14

    play(engine, scenario)


def test_session_errors_leave_the_stream_up(engine: DraftEngine) -> None:
    async def scenario(verifier: ScriptedVerifier, _client: SpeculationClient) -> None:
        stream = await verifier.accept()
        await stream.send(opened(1, list(range(70))), chunk(FEATURE_WIDTH, 1, 0, 66))
        assert "no room for context" in errors([await stream.receive()])[1]
        await stream.send(opened(2, [1, 2, 3]), chunk(5, 2, 0, 2))
        assert "shape" in errors([await stream.receive()])[2]
        await stream.send(*decoding(3, 5))
        await wait_until_proposed(stream, 3, 5)
        assert engine.session_count == 1

    play(engine, scenario)


def test_redial_after_the_verifier_died(engine: DraftEngine) -> None:
    async def scenario(verifier: ScriptedVerifier, _client: SpeculationClient) -> None:
        stream = await verifier.accept()
        await stream.send(*decoding(1, 6))
        await wait_until_proposed(stream, 1, 6)
        address = f"127.0.0.1:{verifier._server.port}" if verifier._server else ""
        stream.over.set()
        await verifier.stop()
        await verifier.start(address)
        again = await verifier.accept()
        # Nothing of the old stream is left: the same id is another session now, handed over half-way.
        assert engine.session_count == 0
        await again.send(opened(1, list(range(9)), features_from=8))
        assert (await again.receive()).context_request.session_id == 1
        await again.send(chunk(FEATURE_WIDTH, 1, 0, 8))
        await wait_until_proposed(again, 1, 9)

    play(engine, scenario)


def test_redial_after_the_stream_ended_well(engine: DraftEngine) -> None:
    async def scenario(verifier: ScriptedVerifier, _client: SpeculationClient) -> None:
        for length in (6, 7):
            stream = await verifier.accept()
            await stream.send(*decoding(1, length))
            await wait_until_proposed(stream, 1, length)
            stream.over.set()

    play(engine, scenario)


def test_a_refused_drafter_keeps_trying(engine: DraftEngine) -> None:
    async def scenario(verifier: ScriptedVerifier, _client: SpeculationClient) -> None:
        await verifier.accept()

    async def refusing(verifier: ScriptedVerifier, _client: SpeculationClient) -> None:
        verifier.refusals = 3
        await scenario(verifier, _client)
        assert verifier.refusals == 0

    play(engine, refusing)


def test_a_verifier_that_makes_no_trees_is_left(model: DraftModel, caplog: pytest.LogCaptureFixture) -> None:
    """One of before this could be negotiated: it welcomes without a word of hidden states."""
    engine = DraftEngine(model, context_pages=16, page_size=4)

    async def scenario(verifier: ScriptedVerifier, client: SpeculationClient) -> None:
        for _ in range(2):
            await verifier.accept()
            assert not client.connected

    hello = verifier_service_pb2.Hello(hidden_state_data_type=tensor_pb2.DATA_TYPE_FLOAT32)
    play(engine, scenario, hello)
    assert "--head drafter" in caplog.text


def test_a_flood_of_commits_ends_at_the_newest_length(engine: DraftEngine) -> None:
    async def scenario(verifier: ScriptedVerifier, _client: SpeculationClient) -> None:
        stream = await verifier.accept()
        await stream.send(*decoding(1, 6))
        await stream.send(*[commits(FEATURE_WIDTH, [(1, 6 + n, [n], 1)]) for n in range(50)])
        assert await wait_until_proposed(stream, 1, 56) <= 51

    play(engine, scenario)


def test_the_queue_hands_over_all_that_waits() -> None:
    class Frames:
        """The receiving half of a stream, for FrameQueue."""

        def __init__(self, frames: list[Response]) -> None:
            self._frames = list(frames)

        async def read(self) -> Any:
            return self._frames.pop(0) if self._frames else grpc.aio.EOF

    async def run() -> None:
        queue, frames = FrameQueue(), [closed(number) for number in range(5)]
        await queue.fill(Frames(frames))  # type: ignore[arg-type]
        assert await queue.take() == (frames, False)

    asyncio.run(run())


def test_backoff_doubles_to_its_bound_and_starts_over() -> None:
    backoff = Backoff(0.1, 1.0, uniform=lambda low, high: (low + high) / 2)
    waits = [backoff.next_s() for _ in range(6)]
    assert waits == pytest.approx([0.075, 0.15, 0.3, 0.6, 0.75, 0.75])
    backoff.reset()
    assert backoff.next_s() == pytest.approx(0.075)

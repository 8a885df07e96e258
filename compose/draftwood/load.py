"""A verifier's load as a watcher sees it: what it holds now, and what it did between two looks."""

from collections import deque
from dataclasses import dataclass, field

import grpc

from draftwood_wire.errors import Unavailable
from draftwood_wire.tls import ChannelTls
from draftwood_wire.transport import open_blocking_channel
from draftwood_wire.v1.verifier_service_pb2 import GetInfoRequest, GetLoadRequest, GetLoadResponse
from draftwood_wire.v1.verifier_service_pb2_grpc import VerifierServiceStub


@dataclass(frozen=True, kw_only=True)
class DrafterRow:
    drafter_id: str
    sessions: int
    node_limit: int
    late: bool  # missed a deadline and has not answered since


@dataclass(frozen=True, kw_only=True)
class LoadFigures:
    """Field names are those of the JSON output. Rates are over the time since the look before; a rate of which nothing
    happened in that time is None."""

    verifier: str
    model: str
    running_requests: int
    waiting_requests: int
    drafted_sessions: int
    tokens_per_s: float | None
    rounds_per_s: float | None
    tokens_per_round: float | None
    acceptance: float | None  # accepted of the nodes looked at
    speculative_share: float | None  # rounds that looked at a tree
    last_step_nodes: int
    last_step_requests: int
    kv_pages_total: int
    kv_pages_used: int
    committed_tokens: int
    rounds: int
    speculative_rounds: int
    proposed_nodes: int
    accepted_nodes: int
    stale_proposals: int
    refused_proposals: int
    rerooted_proposals: int
    drafters: list[DrafterRow]


@dataclass(frozen=True, kw_only=True)
class Look:
    """One answer of GetLoad and when it came (time.monotonic)."""

    load: GetLoadResponse
    at: float


class LoadSource:
    """Asks one verifier; use as a context. Raises ValueError when a file of `tls` can't be used."""

    def __init__(self, address: str, tls: ChannelTls) -> None:
        self.address = address
        self._channel = open_blocking_channel(address, tls)
        self._stub = VerifierServiceStub(self._channel)
        self._model: str | None = None

    def __enter__(self) -> "LoadSource":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, timeout_s: float) -> tuple[str, GetLoadResponse]:
        """The model's name and the load. Raises Unavailable that says why there is no answer."""
        try:
            # Asked again after every failure: another verifier may have come up at the address.
            model = self._model or self._stub.GetInfo(GetInfoRequest(), timeout=timeout_s).model_name
            load = self._stub.GetLoad(GetLoadRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            self._model = None
            raise Unavailable(_reason(error)) from error
        self._model = model
        return model, load


def figures_of(address: str, model: str, look: Look, before: Look | None) -> LoadFigures:
    load = look.load
    if before is None or load.steps < before.load.steps:  # the first look, or a verifier that started again
        before = look
    seconds = look.at - before.at
    rounds = load.rounds - before.load.rounds
    accepted = load.accepted_nodes - before.load.accepted_nodes
    return LoadFigures(
        verifier=address,
        model=model,
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        drafted_sessions=load.drafted_sessions,
        tokens_per_s=_ratio(load.committed_tokens - before.load.committed_tokens, seconds),
        rounds_per_s=_ratio(rounds, seconds),
        tokens_per_round=_ratio(rounds + accepted, rounds),
        acceptance=_ratio(accepted, load.proposed_nodes - before.load.proposed_nodes),
        speculative_share=_ratio(load.speculative_rounds - before.load.speculative_rounds, rounds),
        last_step_nodes=load.last_step_nodes,
        last_step_requests=load.last_step_requests,
        kv_pages_total=load.kv_pages_total,
        kv_pages_used=load.kv_pages_total - load.kv_pages_free,
        committed_tokens=load.committed_tokens,
        rounds=load.rounds,
        speculative_rounds=load.speculative_rounds,
        proposed_nodes=load.proposed_nodes,
        accepted_nodes=load.accepted_nodes,
        stale_proposals=load.stale_proposals,
        refused_proposals=load.refused_proposals,
        rerooted_proposals=load.rerooted_proposals,
        drafters=[
            DrafterRow(drafter_id=row.drafter_id, sessions=row.sessions, node_limit=row.node_limit, late=row.late)
            for row in load.drafter_loads
        ],
    )


@dataclass(kw_only=True)
class LoadHistory:
    """The last looks, oldest first; a look without an answer leaves a gap."""

    looks: deque[LoadFigures | None] = field(default_factory=lambda: deque(maxlen=240))

    def values(self, name: str) -> list[float | None]:
        return [None if figures is None else getattr(figures, name) for figures in self.looks]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _reason(error: grpc.RpcError) -> str:
    """Every error of a call is a Call too; the stubs know only the base."""
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)

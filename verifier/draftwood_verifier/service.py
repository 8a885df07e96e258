"""The verifier put together: engine, gRPC server and their orderly end."""

import asyncio
import importlib.metadata

from draftwood_verifier.admission import Limits
from draftwood_verifier.budget.policy import Policy
from draftwood_verifier.config import VerifierConfig
from draftwood_verifier.drafting import DrafterPool
from draftwood_verifier.engine import Engine
from draftwood_verifier.plan import Runner
from draftwood_verifier.scheduler import Scheduler
from draftwood_verifier.servicer import VerifierServicer
from draftwood_verifier.speculation import SpeculationHandler
from draftwood_verifier.telemetry.observer import VerifierTelemetry
from draftwood_wire.transport import Server
from draftwood_wire.tree import MAX_NODES
from draftwood_wire.v1 import verifier_service_pb2, verifier_service_pb2_grpc

_SERVICE = "draftwood_wire.v1.VerifierService"


class VerifierService:
    """Serves one target; made inside the event loop that it runs in."""

    def __init__(self, config: VerifierConfig, runner: Runner, policy: Policy, *, tokenizer_fingerprint: str) -> None:
        self.policy = policy
        self.scheduler = Scheduler(
            policy,
            pages=config.kv_pages,
            page_size=config.page_size,
            max_batch=config.max_batch,
            max_waiting=config.max_waiting,
            prefill_chunk=config.prefill_chunk,
        )
        self.drafters = DrafterPool(
            policy, vocab_size=runner.vocab_size, wait_s=config.draft_wait_ms / 1000, rejection=config.rejection
        )
        self.engine = Engine(runner, self.scheduler, self.drafters)
        self.telemetry = VerifierTelemetry(metrics=config.metrics, model_name=config.served_model)
        self.speculation = SpeculationHandler(
            self.engine, self.telemetry, tokenizer_fingerprint=tokenizer_fingerprint, rejection=config.rejection
        )
        self._servicer = self._make_servicer(config, runner, tokenizer_fingerprint)
        self._server = Server(config.listen, [_SERVICE], tls=config.tls)
        self._drain_s = config.drain_s
        verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(self._servicer, self._server.grpc)
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Start the loop and answer."""
        self.telemetry.start(self.engine, self.speculation)
        self._loop_task = asyncio.create_task(self.engine.run())
        await self._server.start()

    async def failure(self) -> None:
        """Wait for the loop to end, which it only does by a bug or by `stop`; raises what ended it."""
        assert self._loop_task is not None, "the service was not started"
        await asyncio.shield(self._loop_task)

    async def stop(self) -> None:
        """Refuse new requests, let running ones finish within the drain time, then end everything."""
        self._servicer.drain()
        stopping = asyncio.create_task(self._server.stop(self._drain_s))
        idle = asyncio.create_task(self.engine.idle())
        await asyncio.wait({stopping, idle}, return_when=asyncio.FIRST_COMPLETED)
        # Drafters' streams never end by themselves.
        self.speculation.close()
        await stopping
        idle.cancel()
        self.engine.stop()
        if self._loop_task is not None:
            await self._loop_task
        await asyncio.to_thread(self.telemetry.close)

    def _make_servicer(self, config: VerifierConfig, runner: Runner, fingerprint: str) -> VerifierServicer:
        limits = Limits(
            vocab_size=runner.vocab_size,
            context_limit=runner.context_limit,
            token_capacity=self.scheduler.token_capacity,
            eos_token_ids=tuple(runner.eos_token_ids),
            node_limit=config.node_limit,
        )
        info = verifier_service_pb2.GetInfoResponse(
            model_name=config.served_model,
            version=importlib.metadata.version("draftwood"),
            vocab_size=runner.vocab_size,
            tokenizer_fingerprint=fingerprint,
            context_limit=runner.context_limit,
            eos_token_ids=runner.eos_token_ids,
            max_node_limit=MAX_NODES,
        )
        return VerifierServicer(self.engine, self.telemetry, self.speculation.serve, limits, info)

"""`python -m draftwood_drafter`: load, listen, dial the verifier, and serve until SIGTERM or SIGINT."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch

from draftwood_checkpoint.errors import CheckpointError
from draftwood_checkpoint.model_config import tokenizer_fingerprint
from draftwood_drafter.config import DrafterConfig, Head, parse_config
from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.model import DraftModel
from draftwood_drafter.servicer import DrafterServicer, draft_once
from draftwood_drafter.session import DraftParams, Shape
from draftwood_drafter.speculation_client import Backoff, SpeculationClient
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_kernels.placement import Placement, placement_of
from draftwood_wire.errors import DraftwoodError
from draftwood_wire.heap import settle_heap
from draftwood_wire.transport import Server
from draftwood_wire.v1 import drafter_service_pb2, tensor_pb2, verifier_service_pb2
from draftwood_wire.v1.drafter_service_pb2_grpc import add_DrafterServiceServicer_to_server

PROTOCOL_MINOR = 0
_SERVICE = drafter_service_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name


def make_hello(config: DrafterConfig, model: DraftModel) -> verifier_service_pb2.Hello:
    return verifier_service_pb2.Hello(
        drafter_id=config.id,
        protocol_minor=PROTOCOL_MINOR,
        vocab_size=model.vocab_size,
        tokenizer_fingerprint=tokenizer_fingerprint(config.target),
        target_layer_ids=model.config.target_layer_ids,
        hidden_size=model.config.hidden_size,
        block_size=model.config.block_size,
        feature_data_type=tensor_pb2.DATA_TYPE_FLOAT32,
        node_limit=config.node_limit,
        hidden_state_data_type=(tensor_pb2.DATA_TYPE_UNSPECIFIED if model.has_head else tensor_pb2.DATA_TYPE_FLOAT32),
        num_target_layers=model.config.num_target_layers,
    )


def make_engine(config: DrafterConfig) -> DraftEngine:
    """Load the model and run first drafts, so that no session pays for what is set up, compiled and captured by them.

    Raises ValueError for a device that is not there and Incompatible for a draft that it can't serve.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    placement = placement_of(config.device)
    if placement.is_gpu:
        # Streams, graphs and kernels belong to the current device, not to that of the tensors.
        torch.cuda.set_device(placement.device)
    with_head = config.head is Head.DRAFTER
    model = load_draft_model(config.target, config.draft, with_head=with_head, placement=placement)
    engine = DraftEngine(model, context_pages=config.context_pages, page_size=config.page_size)
    features = np.zeros((1, model.feature_width), np.float32)
    for params in first_wishes(config, placement):
        draft_once(engine, [0, 0], features, params)
    return engine


def first_wishes(config: DrafterConfig, placement: Placement) -> list[DraftParams]:
    """Of a GPU, one for each kernel that it compiles: they go by the nodes of a tree, and by whether it is sampled."""
    if not placement.is_gpu:
        return [DraftParams(shape=Shape.TREE, node_limit=config.node_limit)]
    limits = [limit for limit in (8, 16, 32, 64, 128) if limit < config.node_limit] + [config.node_limit]
    return [
        DraftParams(shape=Shape.TREE, node_limit=limit, temperature=temperature, seed=0)
        for limit in limits
        for temperature in (0.0, 1.0)
    ]


async def serve(config: DrafterConfig, make: Callable[[DrafterConfig], DraftEngine] = make_engine) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    engine = make(config)
    backoff = Backoff(config.redial_min_s, config.redial_max_s)
    telemetry = DrafterTelemetry(metrics=config.metrics)
    client = SpeculationClient(
        engine, make_hello(config, engine.model), config.verifier, backoff, telemetry, config.verifier_tls
    )
    server = Server(config.listen, [_SERVICE], tls=config.tls)
    servicer = DrafterServicer(engine, client, drafter_id=config.id, node_limit=config.node_limit)
    add_DrafterServiceServicer_to_server(servicer, server.grpc)
    telemetry.start(engine, client)
    await server.start()
    settle_heap()
    host = config.listen.rpartition(":")[0]
    metrics = {"metrics": telemetry.metrics_address} if config.metrics else {}
    print(json.dumps({"event": "listening", "address": f"{host}:{server.port}", **metrics}), flush=True)
    speculating = asyncio.create_task(client.run())
    signalled = asyncio.create_task(stopping.wait())
    await asyncio.wait([speculating, signalled], return_when=asyncio.FIRST_COMPLETED)
    for task in (signalled, speculating):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await speculating  # Raises what broke it, if anything did.
    await server.stop()
    await asyncio.to_thread(telemetry.close)


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        asyncio.run(serve(parse_config()))
    except (DraftwoodError, CheckpointError, ValueError) as error:
        sys.exit(f"draftwood_drafter: {error}")


if __name__ == "__main__":
    main()

"""The verifier as a process, or as one process a rank, with a tiny random target; and a client for it."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftwood_wire.transport import open_channel
from draftwood_wire.v1 import verifier_service_pb2 as pb
from draftwood_wire.v1 import verifier_service_pb2_grpc
from tests.services.verifier_harness import Reply, collect, request

VOCAB, HIDDEN = 64, 32
LENGTH = 48
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "eos_token_id": None,
    "bos_token_id": None,
}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


def write_checkpoint(folder: Path, model_type: str = "qwen3") -> Path:
    torch.manual_seed(5)
    options = {**_SIZES, **(_EXPERTS if model_type.endswith("_moe") else {})}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options)).save_pretrained(folder)
    return folder


class Process:
    """One verifier, of which `process` is the launcher, and a client for it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address
        self.channel = open_channel(address)
        self.stub: Any = verifier_service_pb2_grpc.VerifierServiceStub(self.channel)

    async def generate(self, prompt: list[int], **options: Any) -> Reply:
        return await collect(self.stub.Generate(short_request(prompt, **options)))


def short_request(prompt: list[int], length: int = LENGTH, **options: Any) -> pb.GenerateRequest:
    sampling = {name: options.pop(name) for name in ("top_k", "top_p", "min_p") if name in options}
    message = request(prompt, length, **options)
    for name, value in sampling.items():
        setattr(message.sampling, name, value)
    return message


def command(checkpoint: Path, *extra: str, ranks: int = 1) -> list[str]:
    """With several ranks, of the one torchrun that starts them all."""
    return under(["--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else [], checkpoint, *extra)


def under(torchrun: Sequence[str], checkpoint: Path, *extra: str) -> list[str]:
    """Of the verifier, or of a torchrun with these options that starts it."""
    launcher = ["-m", "torch.distributed.run", *torchrun] if torchrun else []
    options = ["--target", str(checkpoint), "--threads", "1", "--kv-pages", "64", "--prefill-chunk", "16"]
    options += ["--draft-wait-ms", "30000", "--listen", "127.0.0.1:0"]
    return [sys.executable, *launcher, "-m", "draftwood_verifier", *options, *extra]


@contextlib.asynccontextmanager
async def verifier(checkpoint: Path, *extra: str, ranks: int = 1) -> AsyncIterator[Process]:
    """With several ranks, all of them under torchrun."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = command(checkpoint, *extra, ranks=ranks)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
    async with _client(process) as client:
        yield client


@contextlib.asynccontextmanager
async def verifier_by_hand(
    checkpoint: Path, *, ranks: int
) -> AsyncIterator[tuple[Process, list[subprocess.Popen[str]]]]:
    """Ranks that nobody watches but they themselves: a client of rank 0, and all processes with their stderr."""
    with free_port() as port:
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            command(checkpoint),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **common, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    try:
        async with _client(processes[0]) as client:
            yield client, processes
    finally:
        end_processes(processes)


@contextlib.asynccontextmanager
async def _client(process: subprocess.Popen[str]) -> AsyncIterator[Process]:
    try:
        client = await listening(process)
        yield client
        await client.channel.close()
    finally:
        end_processes([process])


async def listening(process: subprocess.Popen[str]) -> Process:
    """Once it says so; the channel is the caller's to close."""
    assert process.stdout is not None
    started = json.loads(await asyncio.to_thread(process.stdout.readline))
    assert started["event"] == "listening"
    return Process(process, started["address"])


async def decoding(served: Process) -> Callable[[], Awaitable[grpc.StatusCode]]:
    """Returns in the middle of a long request; call the result for how that ended."""
    call = served.stub.Generate(short_request([5, 0, 9, 33, 2], length=240))
    for _ in range(5):
        await call.read()
    code: Callable[[], Awaitable[grpc.StatusCode]] = call.code
    return code


def end_processes(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]

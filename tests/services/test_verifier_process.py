"""The verifier as a process with a real (tiny, random) target: drafts change no token, and SIGTERM ends it in order."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from draftwood_wire.transport import open_channel
from draftwood_wire.tree import TokenTree
from draftwood_wire.v1 import verifier_service_pb2 as pb
from draftwood_wire.v1 import verifier_service_pb2_grpc
from tests.services.scripted_drafter import DraftedSession, ScriptedDrafter, make_tree
from tests.services.verifier_harness import Reply, collect, request, run

VOCAB, HIDDEN = 64, 32
PROMPTS = [[5, 0, 9, 33, 2], [1], [7, 7, 0, 12] * 9]
LENGTH = 48


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.4,
        eos_token_id=None,
        bos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("target")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


class Process:
    """One verifier and a client for it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address
        self.channel = open_channel(address)
        self.stub: Any = verifier_service_pb2_grpc.VerifierServiceStub(self.channel)

    async def generate(self, prompt: list[int], **options: Any) -> Reply:
        return await collect(self.stub.Generate(_request(prompt, **options)))


def _request(prompt: list[int], *, top_p: float = 0.0, **options: Any) -> pb.GenerateRequest:
    message = request(prompt, LENGTH, **options)
    message.sampling.top_p = top_p
    return message


@contextlib.asynccontextmanager
async def verifier(checkpoint: Path) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "draftwood_verifier", "--target", str(checkpoint), "--threads", "1"]
    command += ["--kv-pages", "64", "--prefill-chunk", "16", "--draft-wait-ms", "30000", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        started = json.loads(line)
        assert started["event"] == "listening"
        client = Process(process, started["address"])
        yield client
        await client.channel.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


SAMPLINGS = [{"temperature": 0.0, "seed": 3}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafts_change_no_token(checkpoint: Path, sampling: dict[str, Any]) -> None:
    async def body() -> None:
        async with verifier(checkpoint) as served:
            plain = [(await served.generate(prompt, **sampling)).tokens for prompt in PROMPTS]
            texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, plain, strict=True)]

            async def script(session: DraftedSession) -> TokenTree:
                """Knows the text; a wrong sibling comes first, and the depth at which it errs changes."""
                length = len(session.tokens)
                text = next(text for text in texts if text[:length] == session.tokens)
                tokens = [*text[length : length + length % 5], (text[length - 1] + 1) % VOCAB]
                return make_tree([(tokens[0] + 1) % VOCAB, *tokens], [0, 0, *range(2, len(tokens) + 1)])

            async with ScriptedDrafter(
                served.address, script, vocab_size=VOCAB, hidden_size=HIDDEN, layer_ids=(0, 2)
            ) as drafter:
                together = await asyncio.gather(*(served.generate(prompt, **sampling) for prompt in PROMPTS))
                assert [reply.tokens for reply in together] == plain
                assert all(reply.usage.accepted_nodes > 10 for reply in together)
                await drafter.until(lambda: all(s.closed for s in drafter.sessions.values()))
                for session in drafter.sessions.values():
                    assert sorted(session.features) == list(range(len(session.tokens) - 1))
            load = await served.stub.GetLoad(pb.GetLoadRequest())
            assert load.kv_pages_free == load.kv_pages_total == 64

    run(body())


def test_sigterm_lets_requests_finish_and_exits_with_zero(checkpoint: Path) -> None:
    async def body() -> None:
        async with verifier(checkpoint) as served:
            alone = await served.generate(PROMPTS[0])
            call = served.stub.Generate(_request(PROMPTS[0]))
            tokens = list((await call.read()).token_ids)
            served.process.send_signal(signal.SIGTERM)
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                tokens += message.token_ids
            assert tokens == alone.tokens
            assert await asyncio.to_thread(served.process.wait) == 0

    run(body())


def test_a_folder_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftwood_verifier", "--target", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert str(tmp_path) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bad_flag_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftwood_verifier", "--target", str(tmp_path), "--node-limit", "300"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "node_limit: 300 is outside 1..256" in ended.stderr

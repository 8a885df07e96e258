"""The verifier as a process with a real (tiny, random) target: drafts change no token, and SIGTERM ends it in order."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftwood_wire.tree import TokenTree
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.scripted_drafter import DraftedSession, ScriptedDrafter, make_tree
from tests.services.verifier_harness import run
from tests.services.verifier_process import HIDDEN, VOCAB, short_request, verifier, write_checkpoint

PROMPTS = [[5, 0, 9, 33, 2], [1], [7, 7, 0, 12] * 9]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


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
            call = served.stub.Generate(short_request(PROMPTS[0]))
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


@pytest.mark.parametrize(
    ("device", "message"), [("cuda:99", "cuda:99 is not here, torch"), ("gpu", "gpu is neither cpu nor cuda")]
)
def test_a_device_that_is_not_here_is_a_clear_error(device: str, message: str, checkpoint: Path) -> None:
    command = [sys.executable, "-m", "draftwood_verifier", "--target", str(checkpoint), "--device", device]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("draftwood_verifier: device: " + message)


def test_a_bad_flag_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftwood_verifier", "--target", str(tmp_path), "--node-limit", "300"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "node_limit: 300 is outside 1..256" in ended.stderr

"""The gateway as a process: its listening line, its exit codes, and a SIGTERM in the middle of a stream."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from draftwood_client import AsyncClient
from tests.services.fake_verifier import FakeVerifier, serving
from tests.services.gateway_harness import make_tokenizer, saying

TEXT = "the tree accepts the draft"


async def start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "draftwood_gateway", *arguments, stdout=PIPE, stderr=PIPE
    )


def test_sigterm_lets_running_streams_end(tmp_path: Path) -> None:
    async def main() -> None:
        tokenizer = make_tokenizer(tmp_path)
        verifier = FakeVerifier(
            script=saying(tokenizer.encode(TEXT).ids), vocab_size=tokenizer.get_vocab_size(), gate=asyncio.Event()
        )
        async with serving(verifier) as (address, _):
            process = await start("--tokenizer", str(tmp_path), "--verifier", address, "--model-name", "tiny")
            assert process.stdout is not None
            line = json.loads(await process.stdout.readline())
            assert line["event"] == "listening"
            async with AsyncClient(line["grpc"]) as client:
                stream = client.stream("hello")
                text = (await anext(stream)).text
                process.send_signal(signal.SIGTERM)
                assert verifier.gate is not None
                verifier.gate.set()
                text += "".join([chunk.text async for chunk in stream])
            assert text == TEXT
            await process.communicate()
            assert process.returncode == 0

    asyncio.run(main())


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        process = await start("--tokenizer", str(tmp_path), "--verifier", "127.0.0.1:1")
        _, errors = await process.communicate()
        assert process.returncode == 2
        assert b"tokenizer" in errors
        make_tokenizer(tmp_path)
        process = await start("--tokenizer", str(tmp_path), "--verifier", "127.0.0.1:1", "--http", "127.0.0.1:x")
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert b"cannot listen on 127.0.0.1:x" in errors

    asyncio.run(main())

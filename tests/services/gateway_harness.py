"""A gateway with a tiny tokenizer in front of fake verifiers, all in the test's event loop."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from draftwood_gateway.app import running_gateway
from draftwood_gateway.config import GatewayConfig
from tests.services.fake_verifier import FakeVerifier, serving

CHAT_TEMPLATE = (
    "{% for message in messages %}<|user|>{{ message['role'] }}:{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|user|>{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Addresses of the gateway; `http` is a URL, `metrics` may be empty."""

    grpc: str
    http: str
    metrics: str
    tokenizer: Tokenizer


def make_tokenizer(folder: Path) -> Tokenizer:
    """A byte-level BPE over a few words, with a chat template; id 0 ends texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<eos>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the tree accepts the draft, the draft proposes the tree"] * 2, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<eos>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def continuing(text_ids: Sequence[int], prompt_len: int, size: int = 2):
    """A script that goes on with `text_ids` from wherever the prompt ends, in messages of `size` tokens."""

    def script(prompt: Sequence[int]) -> list[list[int]]:
        rest = list(text_ids[len(prompt) - prompt_len :])
        return [rest[i : i + size] for i in range(0, len(rest), size)]

    return script


def saying(text_ids: Sequence[int], size: int = 2):
    """A script that says the same to everybody."""
    return lambda _: [list(text_ids[i : i + size]) for i in range(0, len(text_ids), size)]


@asynccontextmanager
async def stage(folder: Path, verifiers: Sequence[FakeVerifier], **options: str) -> AsyncIterator[Stage]:
    """Verifiers first, then the gateway that knows them all."""
    async with AsyncExitStack() as stack:
        addresses = [(await stack.enter_async_context(serving(verifier)))[0] for verifier in verifiers]
        async with gateway(folder, addresses, **options) as running:
            yield running


@asynccontextmanager
async def gateway(
    folder: Path, addresses: Sequence[str], start_wait_s: float = 5.0, **options: str
) -> AsyncIterator[Stage]:
    config = GatewayConfig(
        tokenizer=folder, verifier=tuple(addresses), model_name="tiny", start_wait_s=start_wait_s, drain_s=1, **options
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    async with running_gateway(config) as listening:
        yield Stage(
            grpc=listening.grpc, http=f"http://{listening.http}", metrics=listening.metrics, tokenizer=tokenizer
        )

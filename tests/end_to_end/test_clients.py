"""The clients that people use, over the real services: the openai package and our own command."""

import subprocess
import sys

from openai import OpenAI

from tests.services.processes import Services
from tests.services.requests import held_out_prompts, request

TOKENS = 48


def openai_client(services: Services) -> OpenAI:
    return OpenAI(base_url=f"http://{services.stack.http}/v1", api_key="unused", max_retries=0, timeout=60)


def expected_text(services: Services, prompt: str) -> str:
    return services.generate(request(prompt, "plain", max_tokens=TOKENS)).text


def test_openai_completion_equals_the_grpc_text(services: Services) -> None:
    (prompt,) = held_out_prompts(1)
    with openai_client(services) as client:
        (model,) = client.models.list().data
        answer = client.completions.create(
            model=model.id,
            prompt=prompt,
            max_tokens=TOKENS,
            temperature=0,
            extra_body={"speculation": "tree", "ignore_eos": True},
        )
    assert answer.choices[0].text == expected_text(services, prompt)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS


def test_openai_stream_adds_up_to_the_same_text(services: Services) -> None:
    (prompt,) = held_out_prompts(1)
    with openai_client(services) as client:
        stream = client.completions.create(
            model=client.models.list().data[0].id,
            prompt=prompt,
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            extra_body={"speculation": "chain", "ignore_eos": True},
        )
        text = "".join(choice.text for chunk in stream for choice in chunk.choices)
    assert text == expected_text(services, prompt)


def test_openai_chat_answers(services: Services) -> None:
    with openai_client(services) as client:
        answer = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "def add(a, b):"}],
            max_tokens=TOKENS,
        )
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= TOKENS


def test_generate_command_prints_the_same_text(services: Services) -> None:
    (prompt,) = held_out_prompts(1)
    command = [sys.executable, "-m", "draftwood", "generate", prompt, "--address", services.stack.grpc]
    result = subprocess.run(
        [*command, "--max-tokens", str(TOKENS)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    # The command stops at the model's end-of-text token, which the test's request ignores.
    assert expected_text(services, prompt).startswith(result.stdout.removesuffix("\n"))
    assert result.stdout.strip()


def test_generate_command_says_when_nobody_answers() -> None:
    command = [sys.executable, "-m", "draftwood", "generate", "x", "--address", "127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr

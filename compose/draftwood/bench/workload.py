"""Requests of mixed length, drawn by a seed: the same ones for every mode of a pair.

A prompt is a numbered comment, then held-out texts joined and cut to a number of characters that is log-uniform in
PROMPT_CHARACTERS. The number makes its first page its own, so that no request of a slice finds another one's prompt in
the prefix cache. The output length is log-uniform in OUTPUT_TOKENS; the end-of-text token does not end an answer.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PROMPT_CHARACTERS = (40, 400)
OUTPUT_TOKENS = (32, 192)


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    prompt: str
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Draws from `texts`; the same arguments give the same requests in every process."""

    texts: Sequence[str]
    seed: int
    output_tokens: tuple[int, int] = OUTPUT_TOKENS

    def draws(self, *place: object) -> random.Random:
        """A generator of its own for each place: a pair, a load, a client."""
        return random.Random(":".join(map(str, (self.seed, *place))))

    def client(self, *place: object) -> Iterator[BenchRequest]:
        """What one client asks for, for ever.

        Its first answer is cut to a random rest, as if it had begun before the clock: clients that all start at once
        would otherwise end, and prefill, at once for a long time.
        """
        draws = self.draws(*place)
        first = self.request(draws)
        rest = max(2, round(draws.random() * first.output_tokens))
        yield BenchRequest(prompt=first.prompt, output_tokens=rest)
        while True:
            yield self.request(draws)

    def request(self, draws: random.Random) -> BenchRequest:
        characters = log_uniform(draws, *PROMPT_CHARACTERS)
        prompt = f"# {draws.randrange(100_000)}\n"
        while len(prompt) < characters:
            prompt += draws.choice(self.texts) + "\n\n"
        return BenchRequest(prompt=prompt[:characters], output_tokens=log_uniform(draws, *self.output_tokens))


def log_uniform(draws: random.Random, low: int, high: int) -> int:
    return round(low * math.exp(draws.random() * math.log(high / low)))

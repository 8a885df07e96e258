"""The same request must give the same tokens in every mode."""

from dataclasses import dataclass

from draftwood.bench.traffic import Answer
from draftwood.bench.workload import BenchRequest


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two modes part: after `shared` tokens, with one of `token_ids` each."""

    modes: tuple[str, str]
    prompt: str
    shared: list[int]
    token_ids: tuple[int, int]

    def __str__(self) -> str:
        return f"{' and '.join(self.modes)} differ at token {len(self.shared)} of {self.prompt!r}"


class Equality:
    """Compares answers, broken-off ones as far as they go. Counts the tokens that had something to be compared with."""

    def __init__(self) -> None:
        self.compared_tokens = 0
        self.different: list[Difference] = []
        self._longest: dict[BenchRequest, tuple[str, list[int]]] = {}

    def add(self, mode: str, answers: list[Answer]) -> None:
        for answer in answers:
            self._compare(mode, answer)

    def forget(self) -> None:
        """The next pair has other requests."""
        self._longest.clear()

    def _compare(self, mode: str, answer: Answer) -> None:
        other, known = self._longest.get(answer.request, (mode, []))
        shared = min(len(known), len(answer.token_ids))
        if known[:shared] != answer.token_ids[:shared]:
            at = next(i for i in range(shared) if known[i] != answer.token_ids[i])
            self.different.append(
                Difference(
                    modes=(mode, other),
                    prompt=answer.request.prompt,
                    shared=known[:at],
                    token_ids=(answer.token_ids[at], known[at]),
                )
            )
        self.compared_tokens += shared
        if len(answer.token_ids) > len(known):
            self._longest[answer.request] = (mode, answer.token_ids)

"""The same request must give the same tokens in every mode."""

from draftwood.bench.traffic import Answer
from draftwood.bench.workload import BenchRequest


class Equality:
    """Compares answers, broken-off ones as far as they go. Counts the tokens that had something to be compared with."""

    def __init__(self) -> None:
        self.compared_tokens = 0
        self.different: list[str] = []
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
            self.different.append(f"{mode} and {other} differ at token {at} of {answer.request.prompt!r}")
        self.compared_tokens += shared
        if len(answer.token_ids) > len(known):
            self._longest[answer.request] = (mode, answer.token_ids)

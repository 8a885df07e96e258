"""What a request cost."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Field names as in the wire's GenerateUsage. `messages` are those that a verifier sent."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    speculative_rounds: int = 0
    proposed_nodes: int = 0
    accepted_nodes: int = 0
    messages: int = 0

    def plus(self, attempt: "Usage") -> "Usage":
        """With the rounds of another attempt at the same request. A later attempt finds the earlier one's prompt in
        the cache, which says nothing about the request: the first attempt's figure stands."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=attempt.cached_tokens if self.messages == 0 else self.cached_tokens,
            rounds=self.rounds + attempt.rounds,
            speculative_rounds=self.speculative_rounds + attempt.speculative_rounds,
            proposed_nodes=self.proposed_nodes + attempt.proposed_nodes,
            accepted_nodes=self.accepted_nodes + attempt.accepted_nodes,
            messages=self.messages + attempt.messages,
        )

"""Token ids in, text out: whole characters, stop strings, stop tokens, and the ids that belong to each piece of text.

Tokens are looked at one at a time, so the result does not depend on how they were cut into messages.
"""

import codecs
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TextPiece:
    """`ends` says for each id where it ends in the whole text, in characters. A character that several tokens make up
    belongs to the first of them; behind a stop string there is no text."""

    text: str
    token_ids: list[int]
    ends: list[int]

    def plus(self, later: "TextPiece") -> "TextPiece":
        return TextPiece(
            text=self.text + later.text, token_ids=self.token_ids + later.token_ids, ends=self.ends + later.ends
        )


class TextStream:
    """The text of one completion.

    A stop string ends the text before itself; the token that completes it is the last one kept. A stop token is kept
    and has no text. Among several stop strings the one that is complete first wins, the longest on a tie.
    """

    def __init__(self, pieces: Sequence[bytes], stops: Sequence[str] = (), stop_ids: Collection[int] = ()) -> None:
        self.stopped = False
        self.token_count = 0
        self._pieces = pieces
        self._stops = tuple(stops)
        self._stop_ids = frozenset(stop_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # characters that may still turn out to start a stop string
        self._released = 0  # characters handed out
        self._held_ids: deque[tuple[int, int]] = deque()  # id, characters of text that it completes

    def push(self, token_ids: Iterable[int]) -> TextPiece:
        """Take tokens up to the one that stops the text; `stopped` says whether one did."""
        for token_id in token_ids:
            if self.stopped:
                break
            self._accept(token_id)
        return self._release(everything=self.stopped)

    def finish(self) -> TextPiece:
        """No more tokens come: half a character becomes U+FFFD, held text is let go."""
        if not self.stopped:
            self._decode(b"", final=True)
        return self._release(everything=True)

    def _accept(self, token_id: int) -> None:
        self.token_count += 1
        ends = token_id in self._stop_ids
        self._decode(b"" if ends else self._bytes_of(token_id), final=ends)
        self.stopped = self.stopped or ends
        half_character = bool(self._decoder.getstate()[0])
        self._held_ids.append((token_id, self._released + len(self._held) + half_character))

    def _bytes_of(self, token_id: int) -> bytes:
        # A head padded beyond the tokenizer's vocabulary can draw ids that have no text.
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def _decode(self, data: bytes, *, final: bool) -> None:
        self._held += self._decoder.decode(data, final)
        matches = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if matches:
            self._held = self._held[: min(matches)[1]]
            self.stopped = True

    def _release(self, *, everything: bool) -> TextPiece:
        end = len(self._held) - (0 if everything else self._partial_stop())
        text, self._held = self._held[:end], self._held[end:]
        self._released += len(text)
        token_ids, ends = [], []
        while self._held_ids and (everything or self._held_ids[0][1] <= self._released):
            token_id, token_end = self._held_ids.popleft()
            token_ids.append(token_id)
            ends.append(min(token_end, self._released))
        return TextPiece(text=text, token_ids=token_ids, ends=ends)

    def _partial_stop(self) -> int:
        """Length of the longest end of the held text that a stop string starts with."""
        for length in range(min(len(self._held), max(map(len, self._stops), default=0)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

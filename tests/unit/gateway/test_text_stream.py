"""Text, ids and stops end at the same place, however tokens come."""

import codecs
import random
from collections.abc import Sequence

import pytest

from draftwood_gateway.text_stream import TextPiece, TextStream

PIECES = [bytes([byte]) for byte in range(256)] + [b"ab", b"bc", b"ca", "é".encode(), "日".encode(), b""]


def run(tokens: Sequence[int], cuts: Sequence[int], stops: Sequence[str], stop_ids: Sequence[int] = ()):
    """All pieces of a stream whose messages end at `cuts`."""
    stream = TextStream(PIECES, stops, stop_ids)
    pieces: list[TextPiece] = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        pieces.append(stream.push(tokens[start:end]))
        if stream.stopped:
            break
    if not stream.stopped:
        pieces.append(stream.finish())
    text = "".join(piece.text for piece in pieces)
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    assert len(token_ids) == stream.token_count
    check_ends(token_ids, [end for piece in pieces for end in piece.ends], text)
    return text, token_ids, stream.stopped, pieces


def check_ends(token_ids: Sequence[int], ends: Sequence[int], text: str) -> None:
    """Every token ends behind the characters that are whole by then, and behind the half one it leaves, if any."""
    assert len(ends) == len(token_ids)
    for count, end in enumerate(ends, 1):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        whole = decoder.decode(b"".join(PIECES[token] for token in token_ids[:count]))
        half = bool(decoder.getstate()[0])
        assert end == min(len(whole) + half, len(text))


def expected(tokens: Sequence[int], stops: Sequence[str]) -> tuple[str, list[int], bool]:
    """Brute force over whole prefixes, half characters at the end left out."""
    for count in range(1, len(tokens) + 1):
        data = b"".join(PIECES[token] for token in tokens[:count])
        text = data.decode(errors="ignore")
        found = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
        if found:
            return text[: min(found)[1]], list(tokens[:count]), True
    return b"".join(PIECES[token] for token in tokens).decode(errors="replace"), list(tokens), False


def test_stop_at_every_offset_and_every_split() -> None:
    tokens = [256, 99, 97, 98, 120, 121, 259]  # "ab" c a b x y é
    for stop in ("abc", "bca", "x", "yé", "é", "cabx", "nothing"):
        for mask in range(1 << (len(tokens) - 1)):
            cuts = [i + 1 for i in range(len(tokens) - 1) if mask >> i & 1]
            assert run(tokens, cuts, [stop])[:3] == expected(tokens, [stop]), (stop, cuts)


@pytest.mark.parametrize("seed", range(20))
def test_random_tokens_stops_and_splits(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = [97, 98, 99, 256, 257, 258, 259, 260, 261]
    for _ in range(100):
        tokens = rng.choices(alphabet, k=rng.randint(1, 24))
        stops = ["".join(rng.choices("abcé日", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3))]
        cuts = sorted(rng.sample(range(1, len(tokens)), rng.randint(0, len(tokens) - 1)))
        assert run(tokens, cuts, stops)[:3] == expected(tokens, stops)


def test_characters_split_across_tokens_are_never_halved() -> None:
    text = "a👩‍👩‍👧é日本語🙂"
    tokens = list(text.encode())
    whole, token_ids, _, pieces = run(tokens, range(1, len(tokens)), [])
    assert whole == text
    assert token_ids == tokens
    assert all("�" not in piece.text for piece in pieces)
    assert [piece.token_ids for piece in pieces if piece.text == "🙂"] == [list("🙂".encode())]


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_equal_a_whole_decode(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        tokens = [rng.choice([0x41, 0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0x99, 0x82, 0xFF]) for _ in range(12)]
        text, token_ids, stopped, _ = run(tokens, range(1, 12), [])
        assert (text, token_ids, stopped) == (bytes(tokens).decode(errors="replace"), tokens, False)


def test_a_cut_character_becomes_one_replacement_at_the_end() -> None:
    assert run(list("é日".encode())[:4], [], [])[0] == "é�"


def test_stop_token_has_no_text_and_ends_the_ids() -> None:
    text, token_ids, stopped, _ = run([97, 98, 99, 97], [1], [], [99])
    assert (text, token_ids, stopped) == ("ab", [97, 98, 99], True)


def test_partial_stop_is_held_back_and_let_go() -> None:
    stream = TextStream(PIECES, ["abc"])
    assert stream.push([97]) == TextPiece(text="", token_ids=[], ends=[])
    assert stream.push([98]) == TextPiece(text="", token_ids=[], ends=[])
    assert stream.push([97]) == TextPiece(text="ab", token_ids=[97, 98], ends=[1, 2])
    assert stream.finish() == TextPiece(text="a", token_ids=[97], ends=[3])


def test_earliest_complete_stop_wins() -> None:
    assert run([97, 98, 99, 120], [], ["x", "c", "bc"])[0] == "a"

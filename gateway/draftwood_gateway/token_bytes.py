"""What each token id adds to the text, in bytes.

Tokenizers decode whole sequences, and some of them change earlier text when a later token arrives (a run of byte
tokens turns into replacement characters as soon as it ends in half a character). A table of bytes has no such
memory: text so far is a prefix of all later text by construction, whatever the pieces in which tokens come.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
# Decoders that only join or trim: a completion continues its prompt, so the trim at the very start is not ours.
_NEUTRAL = {"Fuse", "Strip"}


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of every id, indexed by id; special tokens are empty. Raises ValueError on an unknown decoder."""
    decode = _decoder_of(json.loads(tokenizer.to_str())["decoder"])
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token_id in vocabulary.items():
        table[token_id] = decode(piece)
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        table[token_id] = b"" if token.special else token.content.encode()
    return table


def _decoder_of(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", *_NEUTRAL}:
        return _byte_level
    unknown = kinds - {"ByteFallback", "Metaspace", "Replace", *_NEUTRAL}
    if not kinds or unknown:
        raise ValueError(f"tokenizer.json: decoder {sorted(unknown) or decoder} is not supported")
    replacements = [_replacement_of(step) for step in steps if step["type"] in ("Metaspace", "Replace")]
    fallback = "ByteFallback" in kinds

    def decode(piece: str) -> bytes:
        if fallback and (match := _BYTE_TOKEN.match(piece)):
            return bytes.fromhex(match[1])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return decode


def _replacement_of(step: dict[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    pattern = step["pattern"]
    if "String" not in pattern:
        raise ValueError(f"tokenizer.json: decoder pattern {pattern} is not supported")
    return pattern["String"], step["content"]


def _byte_level(piece: str) -> bytes:
    """A piece with characters outside the byte alphabet (an added token) stands for itself, as in `tokenizers`."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in piece)
    except KeyError:
        return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of every byte: Latin-1 where it prints, else 256 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()

"""The byte table against what `tokenizers` decodes."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from draftwood_gateway.token_bytes import token_bytes

TEXT = "def main():\n    print('héllo wörld 日本語 🙂')\n"


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think more>", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    pieces = ["<unk>", "<s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "b", "▁a", "▁ab"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[("▁", "a"), ("▁a", "b")],
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def test_byte_level_pieces_join_to_the_text() -> None:
    tokenizer = byte_level()
    table = token_bytes(tokenizer)
    ids = tokenizer.encode(TEXT + "<think more>").ids
    assert b"".join(table[i] for i in ids).decode() == TEXT + "<think more>"
    assert table[tokenizer.token_to_id("<eos>")] == b""


def test_byte_fallback_keeps_the_space_between_prompt_and_completion() -> None:
    tokenizer = byte_fallback()
    table = token_bytes(tokenizer)
    ids = tokenizer.encode("ab ab é日").ids
    assert b"".join(table[i] for i in ids).decode() == " ab ab é日"
    assert tokenizer.decode(ids) == "ab ab é日"


def test_unknown_decoder_is_refused() -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="WordPiece"):
        token_bytes(tokenizer)

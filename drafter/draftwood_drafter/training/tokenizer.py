"""A small byte-level BPE tokenizer, written as the files that Hugging Face checkpoints carry."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

EOS = "<|endoftext|>"
MASK = "<|mask|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIALS = [EOS, MASK, IM_START, IM_END]

# Words keep one leading space, digits stand alone, runs of blanks stay whole: code is mostly indentation.
_SPLIT = Regex(r" ?[A-Za-z_]+|\d| ?[^\sA-Za-z_\d]+|\n[ \t]*|[ \t]+|\s+|.")
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: every UTF-8 text round-trips; ids 0 to 3 are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_SPLIT, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, output: Path, context_limit: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json into a checkpoint folder."""
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(output / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "mask_token": MASK,
        "additional_special_tokens": [IM_START, IM_END],
        "model_max_length": context_limit,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    (output / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    special = {"eos_token": EOS, "mask_token": MASK, "additional_special_tokens": [IM_START, IM_END]}
    (output / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")

"""Train an embedded pair, or a drafter for your own target.

tokenizer -> target                 a small target from scratch
labels -> drafter -> evaluate       a DFlash drafter for any Hugging Face causal language model folder
"""

import argparse
import json
import sys
from pathlib import Path

import grpc
import torch
from tokenizers import Tokenizer

from draftwood_checkpoint.draft_config import load_draft_config
from draftwood_drafter.training.corpus import Document, folder, split, standard_library
from draftwood_drafter.training.drafter import DrafterPlan, default_layer_ids, train_drafter
from draftwood_drafter.training.evaluate import accepted_length, greedy_texts, load_drafter
from draftwood_drafter.training.hugging_face import load_target
from draftwood_drafter.training.labels import LabelPlan, generate_labels, load_labels
from draftwood_drafter.training.prompts import held_out_prompts, read_prompts, write_prompts
from draftwood_drafter.training.target import TargetPlan, pack, train_target
from draftwood_drafter.training.tokenizer import save_tokenizer, train_tokenizer

# Every checkpoint is measured on this many prompts; `evaluate` takes all of them.
_CHECK_PROMPTS = 8


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    try:
        arguments.run(arguments)
    except (ValueError, FileNotFoundError, grpc.RpcError) as error:
        print(f"draftwood train: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftwood train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    tokenizer = commands.add_parser("tokenizer", help="train a byte-level BPE tokenizer")
    tokenizer.add_argument("--vocab-size", type=int, default=2048)
    tokenizer.set_defaults(run=_tokenizer)
    target = commands.add_parser("target", help="train a small target from scratch")
    target.add_argument("--steps", type=int, required=True)
    target.set_defaults(run=_target)
    prompts = commands.add_parser("prompts", help="write held-out prompts")
    prompts.add_argument("--count", type=int, default=40)
    prompts.set_defaults(run=_prompts)
    labels = commands.add_parser("labels", help="generate the target's own text to train a drafter on")
    labels.add_argument("--sequences", type=int, default=4096)
    labels.add_argument("--verifier", required=True, help="host:port of a verifier that serves the target")
    labels.set_defaults(run=_labels)
    drafter = commands.add_parser("drafter", help="train a DFlash drafter on the labels")
    drafter.add_argument("--labels", type=Path, required=True, help="folder that `labels` wrote")
    drafter.add_argument("--steps", type=int, required=True)
    drafter.add_argument("--layers", type=int, default=2)
    drafter.add_argument("--block-size", type=int, default=8)
    drafter.add_argument("--target-layer-ids", type=int, nargs="+", help="default: three by the published formula")
    drafter.add_argument("--mask-token-id", type=int, help="default: the tokenizer's <|mask|>")
    drafter.add_argument("--sequences", type=int, default=32, help="label rows a step")
    drafter.add_argument("--anchors", type=int, default=24, help="blocks a label row")
    drafter.add_argument("--decay", type=float, default=4.0, help="how slowly a slot's weight falls along the block")
    drafter.set_defaults(run=_drafter)
    evaluate = commands.add_parser("evaluate", help="accepted length on prompts, as a line of JSON")
    evaluate.add_argument("--drafter", type=Path, required=True)
    evaluate.add_argument("--nodes", type=int, nargs="+", default=[0, 8, 16, 32], help="0 is a chain")
    evaluate.add_argument("--new-tokens", type=int, default=128)
    evaluate.set_defaults(run=_evaluate)
    for command in (tokenizer, target, prompts, labels, drafter):
        command.add_argument("--output", type=Path, required=True)
    for command in (labels, drafter, evaluate):
        command.add_argument("--target", type=Path, required=True, help="checkpoint folder of the target")
    for command in (drafter, evaluate):
        command.add_argument("--prompts", type=Path, required=True, help="held-out prompts, a JSON object a line")
    for command in (tokenizer, target, prompts, labels):
        command.add_argument("--corpus", type=Path, help="folder of documents; default: Python's standard library")
    for command in (tokenizer, target, prompts, labels, drafter, evaluate):
        command.add_argument("--threads", type=int, default=2)
    return parser


def _documents(corpus: Path | None) -> tuple[list[Document], list[Document]]:
    return split(folder(corpus) if corpus else standard_library())


def _tokenizer_of(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


def _tokenizer(arguments: argparse.Namespace) -> None:
    train, _ = _documents(arguments.corpus)
    tokenizer = train_tokenizer([d.text for d in train], arguments.vocab_size)
    save_tokenizer(tokenizer, arguments.output, TargetPlan.context_limit)


def _target(arguments: argparse.Namespace) -> None:
    train, held_out = _documents(arguments.corpus)
    plan = TargetPlan(output=arguments.output, steps=arguments.steps)
    train_target(plan, _tokenizer_of(arguments.output), train, held_out)


def _prompts(arguments: argparse.Namespace) -> None:
    _, held_out = _documents(arguments.corpus)
    write_prompts(held_out_prompts(held_out, arguments.count), arguments.output)


def _labels(arguments: argparse.Namespace) -> None:
    train, _ = _documents(arguments.corpus)
    tokens = pack(train, _tokenizer_of(arguments.target))
    generate_labels(
        LabelPlan(output=arguments.output, verifier=arguments.verifier, sequences=arguments.sequences), tokens
    )


def _drafter(arguments: argparse.Namespace) -> None:
    target = load_target(arguments.target)
    tokenizer = _tokenizer_of(arguments.target)
    mask = arguments.mask_token_id if arguments.mask_token_id is not None else tokenizer.token_to_id("<|mask|>")
    if mask is None:
        raise ValueError("--mask-token-id: the tokenizer has no <|mask|> token; name an id that its text never uses")
    plan = DrafterPlan(
        output=arguments.output,
        steps=arguments.steps,
        mask_token_id=mask,
        layers=arguments.layers,
        block=arguments.block_size,
        layer_ids=tuple(arguments.target_layer_ids or default_layer_ids(target.config.num_hidden_layers, 3)),
        sequences=arguments.sequences,
        anchors=arguments.anchors,
        decay=arguments.decay,
    )
    prompts = [tokenizer.encode(text).ids for text in read_prompts(arguments.prompts)[:_CHECK_PROMPTS]]
    texts = greedy_texts(target, prompts, 128, plan.layer_ids)
    ids, lengths = load_labels(arguments.labels)
    train_drafter(plan, target, ids, lengths, lambda: accepted_length(load_drafter(plan.output), target, texts, 32))


def _evaluate(arguments: argparse.Namespace) -> None:
    target, drafter = load_target(arguments.target), load_drafter(arguments.drafter)
    tokenizer = _tokenizer_of(arguments.target)
    prompts = [tokenizer.encode(text).ids for text in read_prompts(arguments.prompts)]
    texts = greedy_texts(target, prompts, arguments.new_tokens, load_draft_config(arguments.drafter).target_layer_ids)
    lengths = {str(n) if n else "chain": round(accepted_length(drafter, target, texts, n), 3) for n in arguments.nodes}
    print(json.dumps({"prompts": len(prompts), "new_tokens": arguments.new_tokens, "accepted_length": lengths}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

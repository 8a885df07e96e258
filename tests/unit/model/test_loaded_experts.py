"""Stacks of experts as checkpoints are loaded into them, their kernels in Triton's interpreter."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwood_checkpoint.model_config import load_text_fields
from draftwood_checkpoint.quantization import quantization
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.placement import CPU, Placement
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.runner import GpuRunner
from draftwood_verifier.model.layer import Mlp
from draftwood_verifier.model.loading import load_blueprint, load_model
from draftwood_verifier.model.weights import WeightReader
from draftwood_verifier.parallel.linear import ALONE, Share
from tests.unit.model.quantized import FP8_CONFIG, INT4_CONFIG, encode_fp8, encode_int4, write_mxfp4, write_quantized
from tests.unit.model.stacking import STACKING, Stacking
from tests.unit.model.targets import PAGE_SIZE, Oracle, chain, commit_plan, decode, make_plan, make_tree

Targets = Callable[[str], Path]


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def mlp_of(folder: Path, share: Share, placement: Placement) -> Mlp:
    blueprint = load_blueprint(folder)
    scheme = quantization(load_text_fields(folder))
    reader = WeightReader(Checkpoint(folder), scheme, share, placement).under(f"{blueprint.prefix}model.layers.2.")
    return blueprint.load_layer(reader, 2).mlp


def quantized(scheme: str, source: Path, folder: Path) -> Path:
    if scheme == "plain":
        return source
    if scheme == "mxfp4":
        return write_mxfp4(source, folder)[0]
    encode, config = {"fp8": (encode_fp8, FP8_CONFIG), "int4": (encode_int4, INT4_CONFIG)}[scheme]
    return write_quantized(source, folder, encode, config, ".experts.")[0]


@pytest.mark.parametrize(
    ("variant", "scheme"),
    [
        ("qwen3-moe", "plain"),
        ("qwen3-moe", "fp8"),
        ("kimi-k25-wide", "int4"),
        ("gpt-oss", "plain"),
        ("gpt-oss-wide", "mxfp4"),
    ],
)
@pytest.mark.usefixtures("plain_on_a_cpu")
def test_loaded_stacks_give_what_the_layer_gives(variant: str, scheme: str, target: Targets, tmp_path: Path) -> None:
    """float32, so that no row is sent elsewhere; two ranks' shares add up."""
    folder = quantized(scheme, target(variant), tmp_path)
    alone = mlp_of(folder, ALONE, CPU)
    normed = torch.randn(5, load_blueprint(folder).config.hidden_size)
    expected = alone(normed)
    torch.testing.assert_close(mlp_of(folder, ALONE, STACKING)(normed), expected, rtol=1e-4, atol=1e-5)
    shares = [mlp_of(folder, Share.planned(rank, 2), STACKING)(normed) for rank in range(2)]
    torch.testing.assert_close(shares[0] + shares[1], expected, rtol=1e-4, atol=1e-5)
    assert (shares[0] - expected).abs().max() > 1e-3, "one rank has everything: the test is blind"


@pytest.mark.usefixtures("plain_on_a_cpu")
def test_a_step_that_a_gpu_runs(target: Targets, oracle: Callable[[str], Oracle]) -> None:
    """A prompt, then a tree in a padded step that takes what the target says."""
    model = load_model(target("qwen3-moe-some"), placement=STACKING)
    pool = KVPool(layers=model.config.num_hidden_layers, pages=9, page_size=PAGE_SIZE, row=model.cache_row)
    runner, expected, ids, table = GpuRunner(model, pool), oracle("qwen3-moe-some"), [5, 9, 60, 2, 33], [3, 1, 6]
    np.testing.assert_allclose(runner.forward(make_plan([chain(ids, 0, table)])), expected.logits(ids), atol=1e-4)
    runner.commit(commit_plan(list(range(5)), 0, table))
    said = [8]
    for _ in range(3):
        said.append(int(expected.logits(ids + said)[-1].argmax()))
    tree = make_tree([said[1] ^ 1, said[1], said[2]], [0, 0, 2])
    (path,) = runner.execute(make_plan([decode(said[0], 5, table, tree)]))
    assert path.tokens == said[1:]


def test_routing_is_read_in_float32(target: Targets) -> None:
    """Of a model that is placed in another type."""
    placement = Stacking(device=CPU.device, dtype=torch.bfloat16)
    router = mlp_of(target("deepseek"), ALONE, placement)._router
    assert router.gate(torch.zeros(1, router.gate.in_features)).dtype == torch.float32
    exact = mlp_of(target("deepseek"), ALONE, CPU)._router
    assert torch.equal(router.bias, exact.bias)
    assert not torch.equal(router.bias, router.bias.bfloat16().float()), "bfloat16 has these numbers: the test is blind"

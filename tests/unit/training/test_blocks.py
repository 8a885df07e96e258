from pathlib import Path

import torch
from torch import Tensor

from draftwood_checkpoint.draft_config import load_draft_config
from draftwood_drafter.training.blocks import choose_anchors, make_blocks
from draftwood_drafter.training.model import TrainableDrafter, block_mask


def test_block_mask_shows_context_before_the_anchor_and_the_own_block() -> None:
    anchors = torch.tensor([[2, 5]])
    visible = block_mask(anchors, context=8, block=3)[0]
    for row in range(6):
        block = row // 3
        expected = [position < anchors[0, block] for position in range(8)] + [
            column // 3 == block for column in range(6)
        ]
        assert visible[row].tolist() == expected


def test_anchors_leave_room_for_context_and_a_label() -> None:
    lengths = torch.tensor([3, 40])
    anchors = choose_anchors(lengths, 500, torch.Generator().manual_seed(0))
    assert anchors.min() >= 1
    assert (anchors <= lengths[:, None] - 2).all()
    assert anchors[1].max() == 38


def test_labels_sit_at_their_own_position_and_weigh_nothing_past_the_end() -> None:
    ids = torch.arange(100, 110)[None]
    blocks = make_blocks(ids, torch.tensor([7]), torch.tensor([[1, 4]]), block=4, mask_token_id=1, decay=4.0)
    assert blocks.input_ids.tolist() == [[101, 1, 1, 1, 104, 1, 1, 1]]
    assert blocks.labels[0, 0].tolist() == [102, 103, 104]
    assert (blocks.weights[0, 0] > 0).tolist() == [True, True, True]
    assert (blocks.weights[0, 1] > 0).tolist() == [True, True, False]
    assert torch.allclose(blocks.weights[0, 0], torch.exp(-torch.arange(3) / 4.0))


def test_nothing_at_or_after_an_anchor_leaks_into_its_block(draft_config_folder: Path) -> None:
    config = load_draft_config(draft_config_folder)
    torch.manual_seed(0)
    model = TrainableDrafter(config).eval()
    anchors = torch.tensor([[6, 11]])
    features = torch.randn(1, 20, 3 * config.hidden_size)
    embedded = torch.randn(1, 2 * config.block_size, config.hidden_size)

    def first_block(features: Tensor, embedded: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(embedded, features, anchors)[:, : config.block_size]

    before = first_block(features, embedded)
    late, other, early = features.clone(), embedded.clone(), features.clone()
    late[:, 6:] += 1.0
    other[:, config.block_size :] += 1.0
    early[:, 5] += 1.0
    assert torch.equal(first_block(late, embedded), before)
    assert torch.equal(first_block(features, other), before)
    assert not torch.allclose(first_block(early, embedded), before)

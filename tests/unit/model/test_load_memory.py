"""Host memory while a checkpoint of many shards is loaded, in a process that does nothing else."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

MIB = 2**20
SHARD = 24 * MIB
# The kernel's own record of the most that was resident, set back just before.
CHILD = """
import json, pathlib, sys
from draftwood_verifier.model.loading import load_model

def resident(field):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(field + ":")[1].split()[0]) * 1024

load_model(pathlib.Path(sys.argv[1]))
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
model = load_model(pathlib.Path(sys.argv[2]))
print(json.dumps({"before": before, "peak": resident("VmHWM"), "after": resident("VmRSS")}))
"""


def write(folder: Path, **sizes: int) -> Path:
    options: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**options, **sizes}))
    model.save_pretrained(folder, max_shard_size=SHARD)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_never_more_than_a_shard_above_the_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    # A first load, small, takes what imports and oneDNN take once.
    small = write(tmp_path / "small", num_hidden_layers=1)
    large = write(tmp_path / "large", num_hidden_layers=30)
    shards = [path.stat().st_size for path in large.glob("*.safetensors")]
    assert len(shards) >= 10
    command = [sys.executable, "-c", CHILD, str(small), str(large)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads(done.stdout)
    share = sum(shards)
    above = seen["peak"] - seen["before"] - share
    assert above <= max(shards), f"{above / MIB:.1f} MiB above {share / MIB:.1f} MiB of weights"
    # The weights themselves are resident: what was measured is a load.
    assert seen["after"] - seen["before"] > 0.9 * share

"""The plan of a JAX trainer's memory against what the TPU's compiler said (docs/compile-check.md). Nothing is compiled."""

import pytest

from common.config import Config
from common.model_shape import BUILT_IN
from rolloutpipe_jax.memory import GIB, device_parts

# Of v5e:2x4, one row of 4096 tokens on each device: remat, attention, GiB of state (with both programs) and of temporaries.
COMPILED = [(True, "splash", 3.260, 1.600), (False, "splash", 3.255, 5.488), (True, "xla", 3.260, 3.121)]


@pytest.mark.parametrize(("remat", "attention", "state", "temporaries"), COMPILED)
def test_the_plan_is_near_what_the_compiler_says(remat: bool, attention: str, state: float, temporaries: float) -> None:
    config = Config(
        trainer="jax",
        model={"path": "qwen3-1.7b"},
        training={
            "ranks": 8,
            "dtype": "bfloat16",
            "attention": attention,
            "activation_checkpointing": remat,
            "micro_batch_tokens": 4096,
        },
        sampling={"max_tokens": 1024},
    )
    parts = device_parts(config, BUILT_IN["qwen3-1.7b"], 4096)
    kept = parts["parameters"] + parts["gradients"] + parts["moments"]
    assert kept / GIB == pytest.approx(state, rel=0.02) and parts["working"] / GIB == pytest.approx(temporaries, rel=0.2)

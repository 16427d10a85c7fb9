"""Hugging Face models with random weights, too small to know anything and as quick as that."""

from typing import Any


def random_model(family: str, *, seed: int = 0, dtype: str = "float32", **settings: Any) -> Any:
    """A `family` ("Qwen3", "Qwen2", "Llama") of 2 layers with 4 heads over 2, unless `settings` of its config say otherwise."""
    import torch
    import transformers

    shape: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{family}Config")(**shape | settings)
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))

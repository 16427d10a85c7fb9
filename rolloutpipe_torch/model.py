"""The policy: any Hugging Face causal LM, asked for the log-probs of given tokens.

dtypes, set here once: weights are stored in float32 (the master copy), computed in `training.dtype`; logits, log-probs and
losses are float32 whatever the model computes in.

Axes: B rows, L padded tokens of a row, N response tokens of all rows together, V vocabulary, D width.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast

from common.errors import DataError, explain
from common.spool import TensorLayout, model_layout
from rolloutpipe_torch.memory import LOGIT_BYTES


class Policy(nn.Module):
    """A causal LM cut in two: `body` gives hidden states, `head` is the rest of the model (lm_head, scaling, soft caps).

    The cut lets the logits be made in chunks and for response tokens only, while all that a model does to its logits stays
    in its own code: the head is the whole model with its body replaced by one that returns what it is given.
    """

    def __init__(self, causal_lm: Any) -> None:
        super().__init__()
        self.prefix: str = causal_lm.base_model_prefix
        self.vocab_size: int = causal_lm.get_output_embeddings().weight.shape[0]
        self.body = causal_lm.base_model
        # The library would give the row of the padding token no gradient, but padding goes by length (rule 8): where a sequence
        # holds that token, the model wrote it.
        causal_lm.get_input_embeddings().padding_idx = None
        setattr(causal_lm, self.prefix, _GivenHidden())
        self.head = causal_lm

    def hf_name(self, name: str) -> str:
        """Name in a model directory of the parameter that is `name` here."""
        part, _, rest = name.partition(".")
        return f"{self.prefix}.{rest}" if part == "body" else rest

    def forward(self, input_ids: Tensor, positions: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probs [N] of `targets` [N] and entropies [N] (no gradient) of the distributions that they were drawn from.

        `input_ids` [B, L] are padded on the right, so no mask is needed: attention is causal, and no real token sees the
        padding behind it. `positions` [N] index the flattened [B * L] at the token before each target.
        """
        hidden = self.body(input_ids=input_ids, use_cache=False).last_hidden_state
        hidden = hidden.flatten(0, 1).index_select(0, positions)
        step = max(1, LOGIT_BYTES // (4 * self.vocab_size))
        if len(targets) <= step:
            return self._score(hidden, targets, temperature)
        # Recomputed in the backward pass, so that only one chunk's logits exist at a time.
        score = partial(checkpoint, self._score, use_reentrant=False, preserve_rng_state=False)
        parts = [
            score(hidden[start : start + step], targets[start : start + step], temperature)
            for start in range(0, len(targets), step)
        ]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logits = self.head(inputs_embeds=hidden[None], use_cache=False).logits[0].float() / temperature
        normaliser = logits.logsumexp(-1)
        with torch.no_grad():
            entropies = normaliser - ((logits - normaliser[:, None]).exp() * logits).sum(-1)
        return logits.gather(-1, targets[:, None])[:, 0] - normaliser, entropies


class _GivenHidden(nn.Module):
    """Stands where the body was."""

    def forward(self, inputs_embeds: Tensor, **_: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=inputs_embeds)  # type: ignore[arg-type]


def check_model(model_dir: Path, layout: dict[str, TensorLayout]) -> int:
    """The size of the vocabulary. Raises DataError where config.json and the weights do not belong together; reads no weights."""
    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
            policy = Policy(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
    except Exception as error:  # a configuration file at fault raises whatever its model's code does, ZeroDivisionError too
        raise _unloadable(model_dir, error) from error
    check_names(policy, layout, model_dir)
    for name, parameter in policy.named_parameters():
        found = layout[policy.hf_name(name)].shape
        if found != tuple(parameter.shape):
            rule = f"must hold {policy.hf_name(name)} in the shape that config.json gives it, {tuple(parameter.shape)}"
            raise DataError(explain("model.path", rule, found, "copy config.json and the weights from one model"))
    return policy.vocab_size


def load_policy(model_dir: Path, dtype: torch.dtype = torch.float32) -> Policy:
    """The model of a directory, on the CPU, without dropout. Raises DataError, in one line."""
    layout = model_layout(model_dir)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(model_dir),
            dtype=dtype,
            attn_implementation="sdpa",  # bit-deterministic on the CPU with one thread, and less memory than eager
            local_files_only=True,
            trust_remote_code=False,  # never asked for on the terminal either
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError, SafetensorError) as error:
        raise _unloadable(model_dir, error) from error
    model, info = loaded
    if info["missing_keys"]:  # transformers would fill them with random numbers
        name = sorted(info["missing_keys"])[0]
        raise _bad_model(model_dir, f"must hold tensor {name}", "copy the model again, or save it again with save_pretrained")
    policy = Policy(model.eval())
    check_names(policy, layout, model_dir)
    return policy


def check_names(policy: Policy, layout: dict[str, TensorLayout], model_dir: Path) -> None:
    """Weights are exported under the names of the files, so every tensor of the files must be a parameter and vice versa."""
    names = {policy.hf_name(name) for name, _ in policy.named_parameters()}
    if names != set(layout):
        name = sorted(names ^ set(layout))[0]
        place = "the files, not of the model" if name in layout else "the model, not of the files"
        rule = f"must hold tensors named as the model's parameters ({name} is one of {place})"
        raise _bad_model(model_dir, rule, "save the model again with save_pretrained, or use a model without fused experts")


def _unloadable(model_dir: Path, error: Exception) -> DataError:
    remedy = f"check its config.json ({_one_line(error)[:200]})"
    return _bad_model(model_dir, "must hold a causal language model that transformers can load", remedy)


def _bad_model(model_dir: Path, rule: str, remedy: str) -> DataError:
    return DataError(explain("model.path", rule, str(model_dir), remedy))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""A worker extension that can take the receiver's care away again, to show that the tests would notice."""

import os

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # as the engine's process has it; an installed libtpu is no TPU
from rolloutpipe_torch.rollout import receiver

_ORIGINAL = receiver.rebind_tied_head


class PlantedExtension(receiver.WorkerExtension):
    """Methods are called by name, through vLLM's collective_rpc."""

    def plant_stale_head(self, is_planted: bool) -> None:
        """Leave the tied head's packed weights as they were."""
        receiver.rebind_tied_head = (lambda model: None) if is_planted else _ORIGINAL

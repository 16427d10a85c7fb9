"""What tests of one vLLM engine share, of those that start none."""

from pathlib import Path

from rolloutpipe_torch.rollout.engine import EngineSettings


def engine_settings(directory: Path, *, publish_timeout_s: float = 1.0) -> EngineSettings:
    """Of the smallest engine, with its model and its log in `directory`."""
    return EngineSettings(
        name="engine-0",
        model_dir=str(directory),
        log_file=str(directory / "log"),
        on_gpu=False,
        capacity=1,
        dtype="float32",
        max_model_len=8,
        threads=1,
        kv_cache_gb=1,
        tensor_parallel=1,
        publish_timeout_s=publish_timeout_s,
    )

"""The PyTorch room: the trainer (FSDP2) and the rollout pool (Ray actors around vLLM)."""

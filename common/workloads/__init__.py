"""Where problems come from (`load`, `reasoning_gym`, `jsonl`, `prompts`) and in which order they are drawn (`sampler`)."""

"""The JAX room: the trainer (Flax NNX, one process that drives all devices), sharding, weights, checkpoints."""

"""The torch trainer: FSDP2 ranks as Ray actors. Nothing is imported here, so that a part can be had without the rest."""

"""Bytes of all tensors that live, from the first operation on: what a GPU's allocator would have to hold."""

import weakref
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the memory behind each result; views share it, and FSDP resizes it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor that was there before."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            weakref.finalize(storage, self._forget, storage._cdata)
        self._set(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result

    def _set(self, storage: torch.UntypedStorage) -> None:
        self.now += storage.nbytes() - self._sizes.get(storage._cdata, 0)
        self._sizes[storage._cdata] = storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)

    def __enter__(self) -> Self:
        def resize(storage: torch.UntypedStorage, size: int) -> None:
            self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

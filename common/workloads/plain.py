"""Python values as plain JSON and back, without loss.

Some reasoning-gym scorers compare with tuples or look up integer keys, which JSON has not. Everything else stays as it is,
so most tasks read as their data set wrote them.
"""

from typing import Any

_TUPLE, _ITEMS = "__tuple__", "__items__"


def encode(value: Any) -> Any:
    """Tuples become `{"__tuple__": [...]}`, mappings with other keys than text `{"__items__": [[key, value], ...]}`."""
    if isinstance(value, tuple):
        return {_TUPLE: [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {_ITEMS: [[encode(key), encode(item)] for key, item in value.items()]}
    return value


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TUPLE}:
        return tuple(decode(item) for item in value[_TUPLE])
    if value.keys() == {_ITEMS}:
        return {decode(key): decode(item) for key, item in value[_ITEMS]}
    return {key: decode(item) for key, item in value.items()}

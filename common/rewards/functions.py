"""A user's own reward function, named by a dotted path and checked before anything expensive starts."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import ConfigError, explain

RewardFunction = Callable[[dict[str, Any], str], float | tuple[float, str]]
FIELD = "rewards.function"


def load_function(path: str) -> RewardFunction:
    """Import `package.module:function`; the working directory is searched too.

    Raises ConfigError where the path is malformed, the module cannot be imported, the name is missing or not callable,
    or it does not take (task, response).
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(explain(FIELD, "must read package.module:function", path, "for example my_rewards:score"))
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    module = _import(module_name, path)
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(explain(FIELD, f"module {module_name} must define {name}", path, "check the spelling of the function"))
    _check(function, path)
    return function


def _import(module_name: str, path: str) -> object:
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # importing runs a stranger's code: anything may come, and all of it is their setting's fault
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        remedy = f"check the spelling, run from its directory, or put that on PYTHONPATH ({cause})"
        raise ConfigError(explain(FIELD, f"module {module_name} must be importable", path, remedy)) from error


def _check(function: object, path: str) -> None:
    if not callable(function):
        raise ConfigError(explain(FIELD, "must name a function", path, f"{path.partition(':')[2]} is not callable"))
    for made in (function, getattr(type(function), "__call__", None)):  # noqa: B004 (of an object that can be called)
        if inspect.iscoroutinefunction(made) or inspect.isasyncgenfunction(made):
            raise ConfigError(explain(FIELD, "must be a plain function", path, "replace `async def` by `def`"))
        if inspect.isgeneratorfunction(made):
            raise ConfigError(explain(FIELD, "must be a plain function", path, "replace `yield` by `return`"))
    try:
        inspect.signature(function).bind({}, "")
    except (TypeError, ValueError) as error:
        remedy = f"define it as def {path.partition(':')[2]}(task, response) ({error})"
        raise ConfigError(explain(FIELD, "must accept (task, response)", path, remedy)) from error

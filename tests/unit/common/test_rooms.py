"""Who may import whom: the table of design section 2, enforced."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PURE_CORE_MODULES = (
    "policies",
    "_admission",
    "_adaptive",
    "_flights",
    "_patience",
    "_plans",
    "_draws",
    "forecast",
    "history",
    "lengths",
    "queue",
    "records",
    "errors",
)
PURE_CORE = tuple(f"common/{name}.py" for name in PURE_CORE_MODULES)
FORBIDDEN_IN_CORE = {"random", "secrets", "time", "datetime", "asyncio", "threading", "concurrent", "multiprocessing", "os"}
FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "ray", "vllm", "transformers")
SHARED_WITH_CORE = {"common", *(f"common.{name}" for name in PURE_CORE_MODULES)}

# Imports every module named on stdin with the frameworks blocked, and prints what failed because of that.
IMPORT_ALL = f"""
import importlib, importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FRAMEWORKS!r}:
            raise AssertionError(f"{{name}} is imported at import time")

sys.path.insert(0, sys.argv[1])
sys.meta_path.insert(0, Blocked())
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except AssertionError as error:
        print(f"{{name}}: {{error}}")
"""

# Prints the top-level modules, beyond those of a bare Python, that the pure core brings in.
IMPORT_CORE = """
import sys
sys.path.insert(0, sys.argv[1])
import common.policies, common.queue
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules imported anywhere in a file, inside functions too."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "common")
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            yield ".".join([*above, node.module or ""]).rstrip(".")


def files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run_python(code: str, *flags: str, stdin: str = "") -> str:
    command = [sys.executable, *flags, "-c", code, str(ROOT)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PURE_CORE)
def test_the_pure_core_imports_the_standard_library_and_itself(name: str) -> None:
    for module in imports(ROOT / name):
        top = module.partition(".")[0]
        assert top in sys.stdlib_module_names or module in SHARED_WITH_CORE or module.startswith("common.records."), module


@pytest.mark.parametrize("name", PURE_CORE)
def test_the_pure_core_knows_no_clock_no_thread_no_event_loop_and_no_random_numbers(name: str) -> None:
    assert not {module.partition(".")[0] for module in imports(ROOT / name)} & FORBIDDEN_IN_CORE


def test_a_bare_python_imports_the_pure_core_and_nothing_else() -> None:
    loaded = set(run_python(IMPORT_CORE, "-I", "-S").split())
    assert "common" in loaded
    assert loaded - sys.stdlib_module_names <= {"common", "__main__"}


def test_no_module_of_common_imports_a_framework_at_import_time() -> None:
    names = [module_name(path) for path in files("common") if path.stem != "__main__"]
    assert "common.policies" in names
    assert run_python(IMPORT_ALL, stdin=" ".join(names)) == ""


def test_the_trainer_rooms_never_import_each_other() -> None:
    for room, other in (("rolloutpipe_torch", "rolloutpipe_jax"), ("rolloutpipe_jax", "rolloutpipe_torch")):
        for path in files(room):
            assert other not in {module.partition(".")[0] for module in imports(path)}, path.relative_to(ROOT)


def test_a_forbidden_import_is_seen_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above are not vacuous."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "common").mkdir()
    source = "def f():\n    import time\n    from common import grpo\n    from . import config\n"
    path = tmp_path / "common" / "x.py"
    path.write_text(source, encoding="utf-8")
    assert {"time", "common.grpo", "common"} <= set(imports(path))

"""What a user of the wheel gets: the pure core without dependencies, and the shipped configurations."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git tracks, so that no build output is left in the tree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(target),
        ".",
    ]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (built,) = target.glob("rolloutpipe-*.whl")
    return built


def test_the_wheel_carries_rooms_configurations_pages_and_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "common" / "report" / "page").iterdir() if path.is_file()}
    configs = {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml")}
    assert pages | configs | {"common/policies.py", "rolloutpipe_torch/trainer.py"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_the_wheel_alone_needs_nothing(wheel: Path) -> None:
    metadata = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("METADATA"))
    lines = zipfile.ZipFile(wheel).read(metadata).decode().splitlines()
    assert all("extra ==" in line for line in lines if line.startswith("Requires-Dist:"))


def test_the_core_imports_from_the_wheel_in_a_bare_python(wheel: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); import common.policies, common.queue; print(common.policies.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert wheel.name in done.stdout


def test_extras_are_those_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == []
    assert {"run", "gpu", "jax", "dev"} <= set(project["optional-dependencies"])

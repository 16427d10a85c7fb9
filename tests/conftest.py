"""Fixtures of all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real data files: ROLLOUTPIPE_TEST_DATA, by default `../shared/data` beside the repository.

    Where it is absent the test is skipped, or fails when CI=true.
    """
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    folder = Path(os.environ.get("ROLLOUTPIPE_TEST_DATA") or default).resolve()
    if not folder.is_dir():
        reason = "real data files are absent; set ROLLOUTPIPE_TEST_DATA to their folder"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def ray_runtime() -> Iterator[None]:
    """Ray, started once for all tests that need it."""
    from rolloutpipe_torch.cluster import start_ray, stop_ray

    start_ray()
    yield
    stop_ray()

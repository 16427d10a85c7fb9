"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_runtime() -> Iterator[None]:
    """Ray, started once for all tests that need it."""
    from rolloutpipe_torch.cluster import start_ray, stop_ray

    start_ray()
    yield
    stop_ray()

"""Ray as the project starts it; of a whole run, see test_end_to_end, of a cluster, test_placing."""

import psutil
import pytest

from tests.listeners import LOOPBACK, listening

pytestmark = pytest.mark.ray


def test_ray_listens_on_the_loopback_address_alone(ray_runtime: None) -> None:
    found = listening(psutil.Process())
    assert found
    assert {address for _, address in found} <= LOOPBACK, found


def test_starting_it_again_changes_nothing(ray_runtime: None) -> None:
    import ray

    from rolloutpipe_torch.cluster import start_ray

    before = ray.get_runtime_context().get_node_id()
    start_ray()
    assert ray.get_runtime_context().get_node_id() == before

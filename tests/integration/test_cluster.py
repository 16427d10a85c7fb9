"""Ray as the project starts it."""

import psutil
import pytest

pytestmark = pytest.mark.ray

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_ray_listens_on_the_loopback_address_alone(ray_runtime: None) -> None:
    driver = psutil.Process()
    addresses: set[str] = set()
    for process in [driver, *driver.children(recursive=True)]:
        try:
            addresses |= {each.laddr.ip for each in process.net_connections() if each.status == psutil.CONN_LISTEN}
        except psutil.Error:  # it has just ended
            continue
    assert addresses
    assert addresses <= LOOPBACK


def test_starting_it_again_changes_nothing(ray_runtime: None) -> None:
    import ray

    from rolloutpipe_torch.cluster import start_ray

    before = ray.get_runtime_context().get_node_id()
    start_ray()
    assert ray.get_runtime_context().get_node_id() == before

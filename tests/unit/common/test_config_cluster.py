"""Settings of where processes live: what cannot be one is refused when the configuration is read."""

import pytest

from common.config import Config
from common.config_cluster import ClusterConfig
from common.config_errors import validate
from common.errors import ConfigError


@pytest.mark.parametrize("pool", ["rollout", "trainer"])
@pytest.mark.parametrize("name", ["GPU", "CPU", "memory", "object_store_memory", "node:10.0.0.5", "node:__internal_head__"])
def test_a_resource_of_rays_own_is_refused(pool: str, name: str) -> None:
    data = {"model": {"path": "m"}, "cluster": {"address": "auto", pool: {"resource": name}}}
    with pytest.raises(ConfigError) as caught:
        validate(Config, data)
    assert str(caught.value).startswith(f"cluster.{pool}.resource: must be a custom resource") and f"got '{name}'" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "address",
    [
        "ray://127.0.0.1:10001",
        "http://x:1",
        "h/p:1",
        "h:\uff16\uff13\uff17\uff19",
        "h:0",
        "h:65536",
        "h:",
        ":1",
        "h",
        "a b:1",
        "h:+1",
        "",
    ],
)
def test_an_address_of_another_form_is_refused(address: str) -> None:
    """With a scheme, or digits that are none of ASCII's, among others."""
    with pytest.raises(ConfigError) as caught:
        validate(Config, {"model": {"path": "m"}, "cluster": {"address": address}})
    if address:
        told = f"cluster.address: must be local, auto or host:port, got '{address}'; for example 10.0.0.5:6379"
        assert str(caught.value).startswith(told)


@pytest.mark.parametrize("address", ["local", "auto", "10.0.0.5:6379", "head.example.org:1", "[::1]:65535"])
def test_an_address_is_taken(address: str) -> None:
    assert ClusterConfig(address=address).address == address


@pytest.mark.parametrize("name", ["fast", "Slot", "gpu_slot", "memory_node", "TPU", "my_group_a"])
def test_a_resource_of_ones_own_is_taken(name: str) -> None:
    cluster = ClusterConfig.model_validate({"address": "auto", "rollout": {"resource": name}})
    assert cluster.rollout.resource == name

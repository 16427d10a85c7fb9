"""Where a trainer's processes meet, and what the configuration has to say for that."""

import pytest
from pydantic import ValidationError

from common.config import Config
from common.config_cluster import ClusterConfig
from common.errors import ConfigError
from common.network import address_of, check_listen, interface_of


def test_names_and_addresses_of_this_machine_find_each_other():
    assert interface_of("127.0.0.1") == "lo"
    assert address_of("lo") == address_of("127.0.0.1") == address_of("localhost") == "127.0.0.1"


@pytest.mark.parametrize("host", ["eth99", "192.0.2.1"])
def test_one_that_this_node_has_not_is_refused_with_those_that_it_has(host):
    with pytest.raises(
        ConfigError, match=rf"^cluster\.host: must be a network interface .*lo \(127\.0\.0\.1\).*, got '{host}'; name"
    ):
        address_of(host)


def test_an_address_without_an_interface_is_refused():
    with pytest.raises(
        ConfigError, match=r"^cluster\.host: must be on each node that has a trainer rank \(.*lo.*\), got '192\.0\.2\.1'"
    ):
        interface_of("192.0.2.1")


def test_only_a_cluster_lets_a_process_listen_to_the_outside():
    for address in ("127.0.0.1", "127.1.2.3", "::1"):
        check_listen(ClusterConfig(), address)
    for address in ("0.0.0.0", "10.0.0.5", "::"):
        with pytest.raises(ConfigError, match=r"^cluster\.address: must be the address of a cluster"):
            check_listen(ClusterConfig(), address)
        check_listen(ClusterConfig(address="10.0.0.5:6379"), address)
        check_listen(ClusterConfig(address="auto"), address)


def test_a_local_run_names_no_interface():
    with pytest.raises(ValidationError, match=r"cluster\.host: must be left out where cluster\.address is local: .*, got 'eth0'"):
        Config(model={"path": "m"}, cluster={"host": "eth0"})

"""On which address the processes of a trainer meet: loopback, unless the configuration asks for another one."""

import ipaddress
import socket

import psutil

from common.config_cluster import ClusterConfig
from common.errors import ConfigError, explain

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether it is an address that no other machine reaches."""
    return ipaddress.ip_address(address).is_loopback


def check_listen(cluster: ClusterConfig, address: str) -> None:
    """Raises ConfigError where `address` is seen from outside and nothing in the configuration asks for that."""
    if cluster.is_local and not is_loopback(address):
        rule = f"must be the address of a cluster for a process to listen on {address}"
        raise ConfigError(explain("cluster.address", rule, cluster.address, "say auto or host:port"))


def interface_of(address: str) -> str:
    """Name of the network interface that has `address`, as NCCL and gloo want it. Raises ConfigError."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    known = ", ".join(sorted(_addresses()))
    raise ConfigError(explain("cluster.host", f"must be on each node that has a trainer rank ({known})", address, "name another"))


def address_of(host: str) -> str:
    """The IP address that `host` (an interface, an address or a name) means on this machine. Raises ConfigError."""
    found = _addresses()
    if host in found:
        return found[host]
    try:
        address = str(socket.gethostbyname(host))
    except OSError:
        address = ""
    if address not in found.values():
        known = ", ".join(f"{name} ({each})" for name, each in sorted(found.items()))
        rule = f"must be a network interface of each node that has a trainer rank, this one ({socket.gethostname()}) has {known}"
        raise ConfigError(explain("cluster.host", rule, host, "name one of them, or leave it out"))
    return address


def _addresses() -> dict[str, str]:
    """IPv4 address of each interface that has one."""
    return {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in reversed(addresses)
        if each.family == socket.AF_INET
    }

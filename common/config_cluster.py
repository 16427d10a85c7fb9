"""Settings of where a run's processes live, of what happens when one of them dies, and of what stays on disk."""

import re
from typing import Literal, Self

from pydantic import Field, StrictInt, model_validator

from common.config_section import Section
from common.errors import ConfigError, explain

# Resources that Ray gives every node, or a placement group: a process that took 1 of them as a custom one would not be placed.
_RAYS_OWN = re.compile(r"CPU|GPU|memory|object_store_memory|node:.*|bundle_group_.*|.*_group_(\d+_)?[0-9a-f]{36}")


def is_host_and_port(address: str) -> bool:
    """Whether it has the form of a cluster's address: no scheme, and a port in ASCII digits."""
    host, _, port = address.rpartition(":")
    return re.fullmatch(r"[^\s/]+", host) is not None and re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) < 65536


def is_rays_own(resource: str) -> bool:
    """Whether it is no custom resource (`ray start --resources`)."""
    return _RAYS_OWN.fullmatch(resource) is not None


class PlaceConfig(Section):
    """The nodes that a pool of processes (rollout or trainer) may live on. Empty: any."""

    labels: dict[str, str] = {}  # Ray node labels that a node must have (`ray start --labels`)
    resource: str | None = Field(None, min_length=1)  # a custom Ray resource, of which each process takes 1
    gpus: StrictInt | None = Field(None, ge=1)  # that this pool will have, for plans; None: those that are there
    gpu_name: str = ""  # for people
    gpu_memory_gb: float | None = Field(None, gt=0)  # of one of them (10^9 bytes); None: that of those that are there


class ClusterConfig(Section):
    """Ray: a node of its own on this machine (`local`), or a running cluster."""

    address: str = Field("local", min_length=1)  # local, auto (RAY_ADDRESS, or the cluster on this machine), or host:port
    # Network interface of the trainer's nodes (eth0) on which ranks meet; None: that of their Ray addresses. Not in a local run.
    host: str | None = Field(None, min_length=1)
    rollout: PlaceConfig = PlaceConfig()
    trainer: PlaceConfig = PlaceConfig()
    weights: Literal["auto", "nccl", "files"] = "auto"  # how they reach the engines; auto: nccl from torch on GPUs to GPUs
    spool_dir: str | None = Field(None, min_length=1)  # seen by all nodes; None: shared memory where all is local, else the run

    @property
    def is_local(self) -> bool:
        """The run has a Ray node of its own."""
        return self.address == "local"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.address not in ("local", "auto") and not is_host_and_port(self.address):
            remedy = "for example 10.0.0.5:6379, as `ray start --address` takes it"
            raise ConfigError(explain("cluster.address", "must be local, auto or host:port", self.address, remedy))
        for name, place in (("rollout", self.rollout), ("trainer", self.trainer)):
            if place.resource is not None and is_rays_own(place.resource):
                rule = "must be a custom resource: one that nodes were started with (ray start --resources)"
                remedy = "name such a one, or leave it out: GPUs and CPU cores are asked for in any case"
                raise ConfigError(explain(f"cluster.{name}.resource", rule, place.resource, remedy))
        if self.is_local:
            self._check_local()
        return self

    def _check_local(self) -> None:
        if self.host is not None:
            rule = "must be left out where cluster.address is local: ranks meet on the loopback address"
            raise ConfigError(explain("cluster.host", rule, self.host, "leave it out, or say auto or host:port"))


class SupervisionConfig(Section):
    """What is done about a process that dies. 0 restarts: the run ends with the fault's cause, and can be resumed."""

    # Of one engine, or of the trainer, within `window_s` (of the trainer also since a new round last ended); then it is final.
    max_restarts: StrictInt = Field(5, ge=0, le=1000)
    window_s: float = Field(3600, gt=0)
    pause_s: float = Field(1, ge=0)  # before a restart; doubled with each further one in the window, at most 60 s
    silent_s: float = Field(60, ge=1)  # an engine that answers no health call for so long counts as dead
    no_engine_s: float = Field(1800, gt=0)  # the run waits so long for a first engine to come back, then it ends


class RetentionConfig(Section):
    """What stays on disk. Rounds that a resume still needs always stay."""

    groups: StrictInt | None = Field(None, ge=1)  # finished rounds that stay in groups/, evaluations in eval/; None: all

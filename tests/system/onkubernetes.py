"""Poise on Kubernetes: with a small API server that behaves on the wire as the real one, or with the real one of 1.20
where it was built. Pods are processes in both cases: this machine runs no kubelet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from drivers.kubernetes_api import KubernetesApi, kubernetes_api

from poise.drivers.kubernetes.api import Api
from poise.drivers.kubernetes.credentials import find_access
from system.kubelet import Kubelet
from system.kubernetes_cluster import SPACE, KubernetesCluster, kubernetes
from system.living import Living
from system.substrate import OnSubstrate

NODES = ("n1", "n2", "n3")
"""Each has 2 CPUs."""

SERVERS = ("small", "real")


class Cluster(NamedTuple):
    """The real one, or the small one."""

    real: KubernetesCluster | None = None
    small: KubernetesApi | None = None


@contextmanager
def cluster_of(server: str, *, schedules: bool = False) -> Iterator[Cluster]:
    """Run one of `SERVERS`. On the real one Poise has the rights of the base, and with `schedules` of the scheduler."""
    if server == "real":
        with kubernetes(schedules=schedules) as real:
            yield Cluster(real=real)
    else:
        with kubernetes_api() as small:
            yield Cluster(small=small)


class OnCluster(OnSubstrate):
    """A cluster with nodes, and a home that reaches it with a kubeconfig of its own."""

    def __init__(self, living: Living, cluster: Cluster) -> None:
        self.living, (self.real, self.small) = living, cluster
        if self.real is not None:
            own, access = self.real.kubeconfig("config", "user"), self.real.access("admin")
        else:
            assert self.small is not None
            own = self.small.kubeconfig(living.root / "config", SPACE)
            access = find_access("", {"KUBECONFIG": str(own)})
        self.api = Api(access)
        living.variables["KUBECONFIG"] = str(own)
        self.kubelets = {name: Kubelet(access, name, living.root / "m", {}) for name in NODES}
        for kubelet in self.kubelets.values():
            kubelet.start()

    def end(self) -> None:
        for kubelet in self.kubelets.values():
            kubelet.stop()
        failed = [text for kubelet in self.kubelets.values() for text in kubelet.failed]
        assert len(failed) < 100, failed

"""A cluster of Kubernetes in which time passes as a test says, and keepers of Poise that come and go."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from drivers.kubernetes_api import KubernetesApi
from poise.drivers.kubernetes.api import Api
from poise.drivers.kubernetes.credentials import find_access
from poise.drivers.kubernetes.watching import Watched
from poise.model.reports.demand import Demand, DemandReport
from poise.model.reports.status import Request
from poise.model.resources import Shape
from poise.ports import Contact, Pilot
from poise_kubernetes import manifests
from poise_kubernetes.claims import DeviceChanges
from poise_kubernetes.cluster import ALL_ENDED, KubernetesCluster
from poise_kubernetes.manifests import ORDERS, Orders
from poise_kubernetes.published import DEVICES, Published
from poise_kubernetes.records import NodeObject, PodObject
from poise_kubernetes.settings import Settings

HOME = "0123456789ab"
CONTACT = Contact("10.0.0.1:7718#" + "a" * 64, "the-token")


def waits(tasks: int = 1, busy: dict[str, int] | None = None, **fields: Any) -> DemandReport:
    known: dict[str, Any] = {"together": 1, "cpu": 1000, "memory": 0, "gpus": 0, "where": "", "work": 0, "longest": 0}
    known |= {"tasks": tasks, "unknown": tasks, **fields}
    shape = Shape(cpu=known["cpu"], memory=known["memory"], gpus=known["gpus"])
    return DemandReport(waits=(Demand(**known, shape=shape),), busy=busy or {})


NOTHING = DemandReport(waits=(), busy={})


class World:
    """A cluster, and keepers of Poise that come and go."""

    def __init__(self, api: KubernetesApi, folder: Path) -> None:
        self.api, self.now = api, 1000.0
        self.folder, self._watched = folder, list[Any]()
        self._devices: Published[DeviceChanges] | None = None
        self.cluster = self.keeper()

    def keeper(self, **settings: Any) -> KubernetesCluster:
        """A new process; the one before it was killed."""
        self.close()
        access = find_access("", {"KUBECONFIG": str(self.api.kubeconfig(self.folder / "config"))})
        own = {"labelSelector": manifests.selector(HOME)}

        def copy(path: str, kind: Any, query: dict[str, str] | None = None) -> Any:
            watched = Watched(Api(access), path, kind, query, lambda: self.now)
            watched.list()
            watched.start()
            self._watched.append(watched)
            return watched

        nodes, pods = copy("/api/v1/nodes", NodeObject), copy("/api/v1/pods", PodObject, {"fieldSelector": ALL_ENDED})
        mine = copy("/api/v1/namespaces/ml/pods", PodObject, own)
        devices = Published(access, DEVICES, DeviceChanges)
        devices.list()
        devices.start()
        self._devices = devices
        api = Api(access, lambda seconds: None)
        known = Settings(**{"namespace": "ml", "image": "poise:1", **settings})
        self.cluster = KubernetesCluster(api, HOME, known, nodes, pods, mine, lambda: self.now, None, devices.news)
        return self.cluster

    @property
    def copies(self) -> list[Any]:
        """The copies of the keeper that there is."""
        return self._watched

    def close(self) -> None:
        if self._devices is not None:
            self._devices.stop()
        self.stop_copies(self.release_copies())

    def release_copies(self) -> list[Any]:
        """The copies of the keeper that there is, which the next one does not stop then."""
        watched, self._watched = self._watched, []
        return watched

    def stop_copies(self, watched: list[Any]) -> None:
        for one in watched:
            one.stop()

    def want(self, demand: DemandReport, seconds: float = 3) -> list[Request]:
        """So many rounds, a second each; the requests that are not met then. Each round sees all changes before it."""
        unmet: list[Request] = []
        for number in range(round(seconds)):
            self.now += 1
            if number % 60 == 0:  # as nodes tell their status again and again, and Pods change
                self.api.patch("nodes", "b", {"metadata": {"annotations": {"renewed": str(self.now)}}})
                self.api.put("pods", "brief", "team", status={"phase": "Pending"}, spec={"nodeName": "b"})
                self.api.remove("pods", "brief", "team")
            self.synchronize()
            unmet = self.cluster.want(demand)
        self.synchronize()
        return unmet

    def synchronize(self, seconds: float = 60) -> None:
        until(self._is_synchronous, "the copies have arrived", seconds)

    def _is_synchronous(self) -> bool:
        def versions(found: list[dict[str, Any]]) -> set[str]:
            return {one["metadata"]["resourceVersion"] for one in found}

        def copied(watched: Any) -> set[str]:
            return {one.metadata.resource_version for one in watched.items()}

        alive = [one for one in self.api.all("pods") if one["status"]["phase"] not in ("Succeeded", "Failed")]
        expected = (versions(self.api.all("nodes")), versions(alive), versions(self.pods()))
        return all(copied(watched) == these for watched, these in zip(self._watched, expected, strict=True))

    def pods(self) -> list[dict[str, Any]]:
        return [one for one in self.api.all("pods") if one["metadata"].get("labels", {}).get(manifests.HOME) == HOME]

    def change(self, name: str, **status: Any) -> None:
        self.api.patch("pods", name, {"status": status}, "ml")

    def begin(self) -> list[Pilot]:
        """Nodes run what they were given, and each has its orders."""
        for one in self.pods():
            if one["spec"].get("nodeName") and one["status"]["phase"] == "Pending":
                ready = {"type": "Ready", "status": "True"}
                self.change(one["metadata"]["name"], phase="Running", conditions=[ready])
        self.want(NOTHING, 1)
        for machine in self.cluster.machines():
            if machine.id not in {pilot.machine for pilot in self.cluster.pilots()}:
                self.cluster.start(machine, machine.name, CONTACT)
        self.want(NOTHING, 1)
        return self.cluster.pilots()

    def orders(self, name: str) -> Orders:
        text = self.api.get("pods", name, "ml")["metadata"]["annotations"][ORDERS]
        return msgspec.json.decode(text, type=Orders)


def until(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)

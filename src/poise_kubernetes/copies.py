"""Copies of the Pods of a cluster, and the resources that they hold on its nodes, kept up to date by changes alone.

A cluster has thousands of Pods, and each change concerns one, so nothing here takes time in proportion to all Pods.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from poise.drivers.kubernetes.watching import Changes
from poise_kubernetes.records import PodObject, requested

_NONE: Mapping[str, int] = {}


class Pods:
    """Pods by uid, from changes by name. A Pod that is created again with the same name is another Pod."""

    def __init__(self) -> None:
        self.by_uid: dict[str, PodObject] = {}
        self._uids: dict[tuple[str, str], str] = {}

    def take(self, changes: Changes[PodObject]) -> list[str]:
        """Apply changes, and return the uids of the Pods that were added, changed or removed."""
        found: list[str] = []
        for name, pod in changes.items():
            before = self._uids.get(name)
            if before is not None and (pod is None or pod.metadata.uid != before):
                del self.by_uid[before], self._uids[name]
                found.append(before)
            if pod is not None:
                self.by_uid[pod.metadata.uid], self._uids[name] = pod, pod.metadata.uid
                found.append(pod.metadata.uid)
        return found


class Room:
    """The resources that Pods hold on each node. A Pod that has ended, or has no node, holds nothing. The room that its
    scheduler makes for a Pod by preemption, on its nominated node, is held too.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, dict[str, int], frozenset[str]]] = {}
        self._used: dict[str, Counter[str]] = {}
        self._ports: dict[str, Counter[str]] = {}

    def count(self, uid: str, pod: PodObject | None) -> Collection[str]:
        """Count a Pod, or stop counting it if it is None. Return the nodes whose room has changed."""
        before = self._held.get(uid)
        after = None
        node = (pod.spec.node_name or pod.status.nominated_node_name) if pod is not None else ""
        if pod is not None and node and not pod.ended:
            after = node, requested(pod), pod.ports
        if before == after:
            return ()
        if before is not None:
            self._add(*before, -1)
            del self._held[uid]
        if after is not None:
            self._add(*after, 1)
            self._held[uid] = after
        return {held[0] for held in (before, after) if held is not None}

    def used(self, node: str) -> Mapping[str, int]:
        """Return the amounts of a node that are held."""
        return self._used.get(node, _NONE)

    def ports(self, node: str) -> Iterable[str]:
        """Return the ports of a node that are held."""
        return self._ports.get(node, ())

    def _add(self, node: str, amounts: Mapping[str, int], ports: Iterable[str], sign: int) -> None:
        used = self._used.setdefault(node, Counter())
        for name, amount in amounts.items():
            used[name] += sign * amount
        held = self._ports.setdefault(node, Counter())
        for port in ports:
            held[port] += sign
            if not held[port]:
                del held[port]
        if not used["pods"]:
            del self._used[node], self._ports[node]

"""Volumes of the Pods that Poise places: which nodes can mount them, and claims that are provisioned for one node.

A bound PersistentVolumeClaim has a PersistentVolume, which only some nodes may be able to mount. A claim whose class
waits for its first consumer is provisioned on the node that an annotation names. A scheduler writes it, waits until the
claim is bound, and then binds the Pod. This module has no input or output, except through `Calls`.
"""

from typing import NamedTuple
from urllib.parse import quote

from poise.decoding import convert
from poise.drivers.kubernetes.objects import Known, Record
from poise.drivers.kubernetes.watching import Changes
from poise_kubernetes.claims import Calls, put
from poise_kubernetes.records import Expression, PodObject, Selector, Term

CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"

SELECTED = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node that it is provisioned for."""

NO_PROVISIONER = "kubernetes.io/no-provisioner"

Name = tuple[str, str]
"""A namespace, and a name in it."""


class ClaimSpec(Record, frozen=True):
    volume_name: str = ""
    storage_class_name: str = ""


class ClaimStatus(Record, frozen=True):
    phase: str = ""


class VolumeClaim(Known, frozen=True):
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def is_bound(self) -> bool:
        return bool(self.spec.volume_name) and self.status.phase == "Bound"

    @property
    def selected(self) -> str:
        """The node that it is provisioned for."""
        return (self.metadata.annotations or {}).get(SELECTED, "")


class ClaimOf(Record, frozen=True):
    namespace: str = ""
    name: str = ""


class VolumeAffinity(Record, frozen=True):
    required: Selector | None = None


class VolumeSpec(Record, frozen=True):
    claim_ref: ClaimOf | None = None
    node_affinity: VolumeAffinity | None = None


class Volume(Known, frozen=True):
    spec: VolumeSpec = VolumeSpec()


class Topology(Record, frozen=True):
    match_label_expressions: tuple[Expression, ...] = ()


class StorageClass(Known, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[Topology, ...] | None = None


class VolumeChanges(NamedTuple):
    """Changes of claims, volumes and classes."""

    claims: Changes[VolumeClaim]
    volumes: Changes[Volume]
    classes: Changes[StorageClass]


class Mounted(NamedTuple):
    """Volumes of a Pod: each of the `selectors` must match its node, the claims in `waiting` are provisioned there; and
    why the Pod cannot be placed whatever is free, if it cannot.
    """

    selectors: tuple[Selector, ...] = ()
    waiting: tuple[VolumeClaim, ...] = ()
    why: str = ""


NOTHING = Mounted()


class Volumes:
    """The claims, volumes and classes of a cluster, and which Pods use which claims. Volumes restrict no Pod if the
    rights to read them are missing.
    """

    def __init__(self) -> None:
        self._reads = False
        self._claims: dict[Name, VolumeClaim] = {}
        self._volumes: dict[Name, Volume] = {}
        self._classes: dict[Name, StorageClass] = {}
        self._users: dict[Name, dict[str, None]] = {}  # uids of Pods, by claim
        self._used: dict[str, tuple[Name, ...]] = {}  # the claims of each Pod, by uid

    def take(self, changes: VolumeChanges | None) -> set[str]:
        """Apply changes; None: they cannot be read. Return the uids of the Pods that they concern."""
        if changes is None:
            return set()
        self._reads = True
        claims, volumes, classes = changes
        concerned = {*claims}
        for name, volume in volumes.items():
            for one in (self._volumes.get(name), volume):
                if one is not None and (of := one.spec.claim_ref) is not None:
                    concerned.add((of.namespace, of.name))
            put(self._volumes, name, volume)
        for name, kind in classes.items():
            put(self._classes, name, kind)
        for name, claim in claims.items():
            put(self._claims, name, claim)
        return {uid for name in (self._users if classes else concerned) for uid in self._users.get(name, ())}

    def use(self, uid: str, pod: PodObject | None) -> None:
        """Note the claims that a Pod uses; None: it has gone."""
        for name in self._used.pop(uid, ()):
            del self._users[name][uid]
            if not self._users[name]:
                del self._users[name]
        if pod is not None and (names := pod.volume_claims):
            self._used[uid] = names
            for name in names:
                self._users.setdefault(name, {})[uid] = None

    def of(self, pod: PodObject) -> Mounted:
        """Return what the volumes of a Pod need."""
        if not (self._reads and pod.spec.volumes):
            return NOTHING
        selectors: list[Selector] = []
        waiting: list[VolumeClaim] = []
        for name in pod.volume_claims:
            found = self._of_claim(name)
            if isinstance(found, str):
                return Mounted(why=f"its PersistentVolumeClaim `{name[1]}` {found}")
            selectors += found.selectors
            waiting += found.waiting
        return Mounted(tuple(selectors), tuple(waiting))

    def _of_claim(self, name: Name) -> Mounted | str:
        claim = self._claims.get(name)
        if claim is None:
            return "does not exist"
        if claim.metadata.deletion_timestamp is not None:
            return "is being deleted"
        if claim.is_bound:
            volume = self._volumes.get(("", claim.spec.volume_name))
            if volume is None:
                return f"has the PersistentVolume `{claim.spec.volume_name}`, which does not exist"
            affinity = volume.spec.node_affinity
            return Mounted((affinity.required,) if affinity is not None and affinity.required is not None else ())
        kind = self._classes.get(("", claim.spec.storage_class_name))
        if claim.spec.volume_name or kind is None or kind.volume_binding_mode != "WaitForFirstConsumer":
            return "is not bound yet"
        if kind.provisioner == NO_PROVISIONER:
            return "is of a class without a provisioner, and Poise chooses no volume: leave the Pod to kube-scheduler"
        selectors = []
        if kind.allowed_topologies:
            selectors.append(Selector(tuple(Term(_within(one)) for one in kind.allowed_topologies)))
        if claim.selected:
            there = Expression(key="metadata.name", operator="In", values=(claim.selected,))
            selectors.append(Selector((Term(match_fields=(there,)),)))
        return Mounted(tuple(selectors), (claim,))


def provision(api: Calls, claim: VolumeClaim, node: str) -> tuple[bool, str]:
    """Have a claim provisioned for a node. Return whether it can be bound there, and why it is not yet; empty if it is.
    Raises the errors of the calls.
    """
    space, name = claim.metadata.namespace, claim.metadata.name
    path = f"/api/v1/namespaces/{quote(space)}/persistentvolumeclaims/{quote(name)}"
    found = convert(api.get(path), VolumeClaim)
    if found.metadata.uid != claim.metadata.uid or found.metadata.deletion_timestamp is not None:
        return False, f"its claim `{name}` was deleted"
    if found.selected not in ("", node) or (found.is_bound and not found.selected):
        return False, f"its claim `{name}` was bound for another Pod"
    if found.is_bound:
        return True, ""
    if not found.selected:
        version = found.metadata.resource_version
        api.patch(path, {"metadata": {"resourceVersion": version, "annotations": {SELECTED: node}}})
    return True, f"its claim `{name}` is being provisioned for the node"


def _within(one: Topology) -> tuple[Expression, ...]:
    return tuple(Expression(key=of.key, operator="In", values=of.values) for of in one.match_label_expressions)

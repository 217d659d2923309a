"""Devices that drivers publish in a cluster (`ResourceSlice`), and the claims of Pods to them (`ResourceClaim`).

These are kinds of `resource.k8s.io/v1` (dynamic resource allocation). A scheduler chooses the devices of a claim, and
writes them into its status before it binds the Pod. This module knows which devices exist, which claims have them, and
which ones a Pod can get on a node. It has no input or output.

It supports requests for a number of whole devices on one node, with selectors of their class and of the request, and
constraints that an attribute matches. A claim that needs more is refused with a reason.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from poise.decoding import convert
from poise.drivers.kubernetes.objects import Known, Owner, Record
from poise.drivers.kubernetes.watching import Changes
from poise_kubernetes.records import PodObject, quantity
from poise_kubernetes.selecting import Described, Predicate, Unsupported, predicate, version

GROUP = "resource.k8s.io"
VERSION = f"/apis/{GROUP}/v1"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that a scheduler has made for a Pod that requests devices as an extended resource."""

FINALIZER = "resource.kubernetes.io/delete-protection"
"""A finalizer keeps an allocated claim until its devices are free."""

MOST_RESERVED = 256
"""Maximum number of Pods that may use one claim; a limit of the API server."""

MOST_DEVICES = 32
"""Maximum number of devices of one claim; a limit of the API server."""

MOST_SPECS = 10_000
"""Maximum number of specs of claims whose needs are kept."""

MOST_TRIES = 10_000
"""Most devices that are tried one after another for a claim on one node: a claim may have constraints that need a
search of all combinations.
"""

Device = tuple[str, str, str]
"""The driver, the pool and the name of a device."""

T = TypeVar("T", bound=Known)


class Value(Record, frozen=True):
    string: str | None = None
    number: int | None = msgspec.field(default=None, name="int")
    truth: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None


class Amount(Record, frozen=True):
    value: str | int = 0


class SliceDevice(Record, frozen=True):
    name: str = ""
    attributes: dict[str, Value] | None = None
    capacity: dict[str, Amount] | None = None
    taints: tuple[dict[str, Any], ...] = ()
    consumes_counters: tuple[dict[str, Any], ...] = ()
    allow_multiple_allocations: bool = False


class PoolName(Record, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Record, frozen=True):
    driver: str = ""
    pool: PoolName = PoolName()
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = ()


class SliceObject(Known, frozen=True):
    spec: SliceSpec = SliceSpec()


class Cel(Record, frozen=True):
    expression: str = ""


class DeviceSelector(Record, frozen=True):
    cel: Cel = Cel()


class ClassSpec(Record, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[dict[str, Any], ...] = ()
    extended_resource_name: str = ""


class ClassObject(Known, frozen=True):
    spec: ClassSpec = ClassSpec()


class Exactly(Record, frozen=True):
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    capacity: dict[str, Any] | None = None


class DeviceRequest(Record, frozen=True):
    name: str = ""
    exactly: Exactly | None = None
    first_available: tuple[dict[str, Any], ...] = ()


class Constraint(Record, frozen=True):
    requests: tuple[str, ...] = ()
    match_attribute: str = ""


class ClaimDevices(Record, frozen=True):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[dict[str, Any], ...] = ()


class ClaimSpec(Record, frozen=True):
    devices: ClaimDevices = ClaimDevices()


class Result(Record, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""

    @property
    def of(self) -> Device:
        return self.driver, self.pool, self.device


class Results(Record, frozen=True):
    results: tuple[Result, ...] = ()


class Allocation(Record, frozen=True):
    devices: Results = Results()


class Reserved(Record, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(Record, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Reserved, ...] = ()


class ClaimObject(Known, frozen=True):
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.metadata.name

    @property
    def notes(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}

    @property
    def owner(self) -> Owner | None:
        return next((of for of in self.metadata.owner_references or () if of.controller), None)


class Granted(NamedTuple):
    """The devices that a Pod gets by a claim, and the body of the allocation. Without a body, the claim already has its
    devices, and the Pod shares them.
    """

    claim: ClaimObject
    allocation: dict[str, Any]
    devices: tuple[Device, ...]


class DeviceChanges(NamedTuple):
    """Changes of devices and claims."""

    slices: Changes[SliceObject]
    classes: Changes[ClassObject]
    claims: Changes[ClaimObject]


NO_CHANGES = DeviceChanges({}, {}, {})


class Wanted(NamedTuple):
    """Devices that a Pod claims, by driver; what makes this kind of claims different from others; and why the Pod
    cannot be placed whatever is free, if it cannot.
    """

    claims: tuple[ClaimObject, ...] = ()
    counts: Mapping[str, int] = {}
    words: tuple[str, ...] = ()
    why: str = ""


NOTHING = Wanted()


class Found(NamedTuple):
    """A device: the values that selectors read, and its index among the devices of its driver on its node."""

    id: Device
    node: str
    place: int
    described: Described

    @property
    def product(self) -> str:
        """The model, if the driver reports it."""
        values = {name: value for known in self.described.attributes.values() for name, value in known.items()}
        return next((str(values[name]) for name in ("productName", "model") if values.get(name)), "")

    @property
    def memory(self) -> int:
        """Bytes of memory; 0 if the driver does not report it."""
        return max((int(known.get("memory", 0)) for known in self.described.capacity.values()), default=0)


class Devices:
    """The devices of a cluster, their classes, and all claims."""

    def __init__(self) -> None:
        self._slices: dict[str, SliceObject] = {}
        self._classes: dict[str, ClassObject] = {}
        self.claims: dict[tuple[str, str], ClaimObject] = {}
        self._by_node: dict[str, dict[str, list[Found]]] = {}  # by node and driver
        self._of: dict[Device, Found] = {}
        self._taken: dict[Device, tuple[str, str]] = {}  # the claim that has a device, by its status
        self._lent: dict[tuple[str, str], list[Granted]] = {}  # what Pods about to be bound get, by claim
        self._drivers: dict[str, Mapping[str, int] | str] = {}  # computed once for each spec of a claim

    # --- what there is ------------------------------------------------------------------------------------------------

    def take(self, changes: DeviceChanges) -> set[str]:
        """Apply changes. Return the nodes whose devices or allocations have changed."""
        nodes: set[str] = set()
        slices, classes, claims = changes
        for (_, name), one in slices.items():
            put(self._slices, name, one)
        for (_, name), kind in classes.items():
            put(self._classes, name, kind)
        if slices or classes:
            nodes |= {*self._by_node}
            self._index()
            self._drivers.clear()
            nodes |= {*self._by_node}
        for key, claim in claims.items():
            before, after = self._devices_of(self.claims.get(key)), self._devices_of(claim)
            for device in before:
                self._taken.pop(device, None)
            self._taken.update(dict.fromkeys(after, key))
            if claim is None or after:
                self._lent.pop(key, None)
            put(self.claims, key, claim)
            nodes.update(self._nodes_of([*before, *after]))
        return nodes

    def _index(self) -> None:
        """Find the devices. Slices of an older generation of a pool, and incomplete pools, do not count."""
        pools: dict[tuple[str, str], list[SliceSpec]] = {}
        for one in self._slices.values():
            pools.setdefault((one.spec.driver, one.spec.pool.name), []).append(one.spec)
        self._by_node, self._of = {}, {}
        for (driver, pool), specs in sorted(pools.items()):
            latest = max(spec.pool.generation for spec in specs)
            whole = [spec for spec in specs if spec.pool.generation == latest]
            if len(whole) < whole[0].pool.resource_slice_count:
                continue
            for spec in whole:
                for device in spec.devices if spec.node_name else ():
                    if device.taints or device.consumes_counters or device.allow_multiple_allocations:
                        continue
                    known = self._by_node.setdefault(spec.node_name, {}).setdefault(driver, [])
                    found = Found((driver, pool, device.name), spec.node_name, len(known), _described(driver, device))
                    known.append(found)
                    self._of[found.id] = found

    def _devices_of(self, claim: ClaimObject | None) -> tuple[Device, ...]:
        allocation = claim.status.allocation if claim is not None else None
        return tuple(result.of for result in allocation.devices.results) if allocation is not None else ()

    def _nodes_of(self, devices: Iterable[Device]) -> Iterable[str]:
        return (self._of[device].node for device in devices if device in self._of)

    def sizes(self, node: str) -> dict[str, int]:
        """Return the number of devices of a node, by driver."""
        return {driver: len(found) for driver, found in self._by_node.get(node, {}).items()}

    def on(self, node: str, driver: str) -> Sequence[Found]:
        return self._by_node.get(node, {}).get(driver, ())

    def held(self, node: str, driver: str, without: Collection[tuple[str, str]]) -> set[int]:
        """Return the indices of devices of a node that claims have, other than these claims."""
        found = set()
        for one in self.on(node, driver):
            claim = self._taken.get(one.id)
            if claim is not None and claim not in without:
                found.add(one.place)
        return found

    def extended(self, node: str) -> dict[str, tuple[list[Found], int]]:
        """Return the devices of a node by their extended resource, and how many of them are allocated to claims other
        than those of Pods that request that resource.
        """
        found: dict[str, tuple[list[Found], int]] = {}
        for kind in self._classes.values():
            name = kind.spec.extended_resource_name
            try:
                tests = [predicate(one.cel.expression) for one in kind.spec.selectors]
            except Unsupported:
                continue
            devices = [
                one
                for of_driver in self._by_node.get(node, {}).values()
                for one in of_driver
                if all(test(one.described) for test in tests)
            ]
            if name and devices:
                holders = (self.claims.get(self._taken.get(one.id, ("", ""))) for one in devices)
                found[name] = devices, sum(of is not None and EXTENDED not in of.notes for of in holders)
        return found

    # --- what Pods want -----------------------------------------------------------------------------------------------

    def wanted(self, pod: PodObject) -> Wanted:
        """Return what a Pod claims. Claims that a Pod names directly may be shared, so the ledger does not count their
        devices.
        """
        if not pod.spec.resource_claims:
            return NOTHING
        made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
        claims: list[ClaimObject] = []
        counts: dict[str, int] = {}
        words: list[str] = []
        for one in pod.spec.resource_claims:
            name = one.resource_claim_name or made.get(one.name, "")
            claim = self.claims.get((pod.metadata.namespace, name))
            if claim is None:
                what = f"its ResourceClaim `{name}`" if name else f"its ResourceClaim for `{one.name}`"
                return Wanted(why=f"{what} does not exist yet")
            if not one.resource_claim_name and (claim.owner is None or claim.owner.uid != pod.metadata.uid):
                return Wanted(why=f"its ResourceClaim `{name}` belongs to another Pod")
            found = self._counts(claim)
            if isinstance(found, str):
                return Wanted(why=f"its ResourceClaim `{name}`: {found}")
            if one.resource_claim_name:
                words.append(f"claim {pod.metadata.namespace}/{name}")
            else:
                words.append(f"claims {msgspec.json.encode(claim.spec).decode()}")
                for driver, count in found.items():
                    counts[driver] = counts.get(driver, 0) + count
            claims.append(claim)
        return Wanted(tuple(claims), counts, tuple(words))

    def _counts(self, claim: ClaimObject) -> Mapping[str, int] | str:
        """Return how many devices of each driver a claim needs, or why it cannot be allocated by this scheduler."""
        key = msgspec.json.encode(claim.spec).decode()
        if key not in self._drivers:
            if len(self._drivers) >= MOST_SPECS:
                self._drivers.clear()
            self._drivers[key] = self._computed(claim.spec.devices)
        return self._drivers[key]

    def _computed(self, devices: ClaimDevices) -> Mapping[str, int] | str:
        counts: dict[str, int] = {}
        if any(not of.match_attribute for of in devices.constraints):
            return "Poise supports only constraints with `matchAttribute`"
        for request in devices.requests:
            tests = self._tests(request)
            if isinstance(tests, str):
                return tests
            drivers = {of.id[0] for of in self._of.values() if all(test(of.described) for test in tests)}
            if len(drivers) != 1:
                have = ", ".join(sorted(drivers))
                return f"request `{request.name}` matches devices of {have}" if have else _none(request.name)
            if request.exactly is not None:
                driver = drivers.pop()
                counts[driver] = counts.get(driver, 0) + request.exactly.count
        if (total := sum(counts.values())) > MOST_DEVICES:
            return f"it requests {total} devices, but a claim can have at most {MOST_DEVICES}"
        return counts

    def _tests(self, request: DeviceRequest) -> list[Predicate] | str:
        """Return the requirements of a request for a device, or why the request is not supported."""
        exactly = request.exactly
        if exactly is None or exactly.allocation_mode != "ExactCount" or exactly.admin_access or exactly.capacity:
            return f"Poise supports only a number of whole devices in request `{request.name}`"
        kind = self._classes.get(exactly.device_class_name)
        if kind is None:
            return f"there is no DeviceClass `{exactly.device_class_name}`"
        try:
            return [predicate(one.cel.expression) for one in (*kind.spec.selectors, *exactly.selectors)]
        except Unsupported as error:
            return str(error)

    # --- what Pods get ------------------------------------------------------------------------------------------------

    def grant(
        self, claims: Iterable[ClaimObject], node: str, preferred: Iterable[int] = (), known: bool = True
    ) -> list[Granted] | str:
        """Return what a Pod gets by its claims on a node, or why it cannot be there. Devices with `preferred` indices
        come first. If the claims are not `known`, they belong to a similar Pod, and their devices are not for this one.
        """
        first, gone, granted = {*preferred}, set[Device](), list[Granted]()
        for old in claims:
            claim = self.claims.get(old.key, old)
            [shared, *_] = self._lent.get(claim.key) or [Granted(claim, {}, self._devices_of(claim))]
            if shared.devices and claim.owner is None:
                if any(of in self._of and self._of[of].node != node for of in shared.devices):
                    return f"the devices of ResourceClaim `{claim.metadata.name}` are on another node"
                if len(claim.status.reserved_for) >= MOST_RESERVED:
                    return f"ResourceClaim `{claim.metadata.name}` is used by {MOST_RESERVED} Pods"
                granted.append(shared)
                continue
            found = self._chosen(claim, node, gone, first, known)
            if isinstance(found, str):
                return found
            gone.update(one.id for _, one in found)
            granted.append(Granted(claim, self._body(claim, node, found), tuple(one.id for _, one in found)))
        return granted

    def _chosen(
        self, claim: ClaimObject, node: str, gone: set[Device], first: set[int], known: bool
    ) -> list[tuple[str, Found]] | str:
        """Return devices for the requests of a claim."""
        own = claim.key if known else None
        lent = {device for key, every in self._lent.items() if key != own for one in every for device in one.devices}
        free = [
            one
            for of_driver in self._by_node.get(node, {}).values()
            for one in of_driver
            if self._taken.get(one.id, own) == own and one.id not in gone and one.id not in lent
        ]
        free.sort(key=lambda of: (of.place not in first, of.place))
        places: list[tuple[str, list[Found]]] = []
        for request in claim.spec.devices.requests:
            tests = self._tests(request)
            if isinstance(tests, str):
                return tests
            fitting = [one for one in free if all(test(one.described) for test in tests)]
            count = request.exactly.count if request.exactly is not None else 0
            if len(fitting) < count:
                return f"devices for request `{request.name}`: {count} requested, {len(fitting)} free"
            places += [(request.name, fitting)] * count
        chosen = _fit(places, claim.spec.devices.constraints, [], iter(range(MOST_TRIES)))
        if chosen is None:
            return f"no free devices were found that fulfil all requirements of ResourceClaim `{claim.metadata.name}`"
        return [(name, one) for (name, _), one in zip(places, chosen, strict=True)]

    def _body(self, claim: ClaimObject, node: str, found: Iterable[tuple[str, Found]]) -> dict[str, Any]:
        """Return the allocation in the format of the API server."""
        results = [
            {"request": request, "driver": one.id[0], "pool": one.id[1], "device": one.id[2]} for request, one in found
        ]
        config: list[dict[str, Any]] = []
        for request in claim.spec.devices.requests:
            kind = self._classes.get(request.exactly.device_class_name) if request.exactly is not None else None
            made = kind.spec.config if kind is not None else ()
            config += [{"source": "FromClass", "requests": [request.name], **one} for one in made]
        config += [{"source": "FromClaim", **one} for one in claim.spec.devices.config]
        by_name = {"key": "metadata.name", "operator": "In", "values": [node]}
        return {
            "devices": {"results": results} | ({"config": config} if config else {}),
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [by_name]}]},
        }

    def lend(self, granted: Iterable[Granted]) -> None:
        """Count devices as taken until the copy of the cluster shows this, or they are returned."""
        for one in granted:
            self._lent.setdefault(one.claim.key, []).append(one)

    def give_back(self, granted: Iterable[Granted]) -> None:
        for one in granted:
            lent = self._lent.get(one.claim.key, [])
            if one in lent:
                lent.remove(one)
            if not lent:
                self._lent.pop(one.claim.key, None)


def _fit(
    places: Sequence[tuple[str, list[Found]]],
    constraints: Sequence[Constraint],
    chosen: list[Found],
    tries: Iterator[int],
) -> list[Found] | None:
    """Return one device for each place such that all constraints hold; None if none are found within the `tries`.
    Searches depth first. The devices of one request are in order, so that no set of them is tried twice.
    """
    if len(chosen) == len(places):
        return chosen
    name, fitting = places[len(chosen)]
    same = bool(chosen) and places[len(chosen) - 1][0] == name
    for one in fitting[fitting.index(chosen[-1]) + 1 :] if same else fitting:
        if next(tries, None) is None:
            return None
        more = [*chosen, one]
        if one not in chosen and all(_matches(of, places, more) for of in constraints):
            found = _fit(places, constraints, more, tries)
            if found is not None:
                return found
    return None


def _matches(constraint: Constraint, places: Sequence[tuple[str, list[Found]]], chosen: Sequence[Found]) -> bool:
    domain, _, name = constraint.match_attribute.rpartition("/")
    values: list[Any] = [
        one.described.attributes.get(domain, {}).get(name)
        for (request, _), one in zip(places, chosen, strict=False)
        if not constraint.requests or request in constraint.requests
    ]
    return all(value is not None and value == values[0] for value in values)


def _described(driver: str, device: SliceDevice) -> Described:
    attributes: dict[str, dict[str, Any]] = {}
    for key, value in (device.attributes or {}).items():
        domain, _, name = key.rpartition("/")
        told = next((of for of in (value.string, value.number, value.truth) if of is not None), None)
        attributes.setdefault(domain or driver, {})[name] = version(value.version) if value.version else told
    capacity: dict[str, dict[str, Any]] = {}
    for key, amount in (device.capacity or {}).items():
        domain, _, name = key.rpartition("/")
        capacity.setdefault(domain or driver, {})[name] = quantity(amount.value)
    return Described(driver, attributes, capacity)


def _none(request: str) -> str:
    return f"no device in the cluster matches request `{request}`"


def put(known: dict[Any, T], key: Any, one: T | None) -> None:
    """Keep the current object, or forget a deleted one."""
    if one is None:
        known.pop(key, None)
    else:
        known[key] = one


class Calls(Protocol):
    """The calls to the API server that a reservation or a provision needs."""

    def get(self, path: str) -> Any: ...
    def patch(self, path: str, body: Mapping[str, Any]) -> Any: ...


def reserve(api: Calls, pod: PodObject, granted: Granted) -> bool:
    """Write the allocation for a Pod into a claim: first the finalizer, then the devices and the Pod. Each write fails
    if the claim has changed meanwhile. Return whether this succeeded; if not, the claim was deleted or has other
    devices now. Raises the errors of the calls.
    """
    space, name = granted.claim.key
    path = f"{VERSION}/namespaces/{quote(space)}/resourceclaims/{quote(name)}"
    claim = api.get(path)
    if claim["metadata"]["uid"] != granted.claim.metadata.uid or claim["metadata"].get("deletionTimestamp"):
        return False
    told = convert(claim, ClaimObject).status
    others = [one for one in told.reserved_for if one.uid != pod.metadata.uid]
    have = tuple(one.of for one in told.allocation.devices.results) if told.allocation is not None else ()
    if have and have != granted.devices:
        if others or granted.claim.owner is None:
            return False
        free = {"allocation": None, "reservedFor": None}  # devices of a place that this Pod did not get
        claim = api.patch(f"{path}/status", {"metadata": _as_read(claim), "status": free})
        have = ()
    if have and len(others) < len(told.reserved_for):
        return True
    user = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
    status: dict[str, Any] = {"reservedFor": [*map(msgspec.to_builtins, others), user]}
    if not have:
        if not granted.allocation:
            return False
        status["allocation"] = granted.allocation
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            with_it = {**_as_read(claim), "finalizers": [*finalizers, FINALIZER]}
            claim = api.patch(path, {"metadata": with_it})
    api.patch(f"{path}/status", {"metadata": _as_read(claim), "status": status})
    return True


def _as_read(claim: Mapping[str, Any]) -> dict[str, Any]:
    return {"resourceVersion": claim["metadata"]["resourceVersion"]}

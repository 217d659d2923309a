"""Node scores: named terms in [0, 1], higher is better, computed over columns and weighted by a policy. Some terms also
score the devices of a node for a share of one.

A term is a function of a `Scoring`: the nodes to score (rows), their free resources, the shape and the estimates. The
score of a node is the weighted mean of its terms, so it is in [0, 1] whatever the weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poise.model.fleet import CPU, DEVICES, HIGH, MEMORY, NETWORK, Fleet, Floats, Ints
from poise.model.profiles import Estimate
from poise.model.resources import PLENTY, WHOLE, Shape
from poise.policy.feasible import ability, usable_devices
from poise.policy.fragments import Account, Typical, all_of_it, as_foreseen, fragments
from poise.units import MILLISECOND

_NEVER = np.iinfo(np.int64).max


class Scoring:
    """The inputs of a term. `free` is (4, N), less the placements of this round; `rows` the nodes to score; `estimates`
    the run time by device model; `seed` the view's, advanced with every placed task. `share` and `memory` are (N, D),
    the free parts of each device; `typical` is the typical work (None: unknown).
    """

    __slots__ = ("_taken", "estimates", "fleet", "free", "memory", "rows", "seed", "shape", "share", "typical")

    def __init__(
        self,
        fleet: Fleet,
        rows: Ints,
        free: Ints,
        shape: Shape,
        estimates: Sequence[Estimate],
        seed: int,
        *,
        share: Ints | None = None,
        memory: Ints | None = None,
        typical: Typical | None = None,
    ) -> None:
        self.fleet, self.rows, self.free, self.shape = fleet, rows, free, shape
        self.estimates, self.seed, self.typical = estimates, seed, typical
        self.share = fleet.device_share if share is None else share
        self.memory = fleet.device_memory if memory is None else memory
        self._taken: Floats | None = None

    def of(self, rows: Ints) -> "Scoring":
        """Return the same inputs for other nodes."""
        return Scoring(
            self.fleet, rows, self.free, self.shape, self.estimates, self.seed, share=self.share, memory=self.memory,
            typical=self.typical,
        )  # fmt: skip

    def taken(self, resource: int) -> Floats:
        """Return the used part of a resource with the task placed; 1 where the node has none of it."""
        if self._taken is None:
            shape = self.shape
            need = np.array([[shape.cpu], [shape.memory], [shape.network], [shape.gpus]])
            total = self.fleet.total[:, self.rows]
            left = self.free[:, self.rows] - need
            self._taken = np.where(total > 0, 1 - left / np.maximum(total, 1), 1.0)
        return np.asarray(self._taken[resource])

    def used(self, resource: int) -> Floats:
        """Return the part of a resource that is used now; 0 where the node has none of it."""
        total = self.fleet.total[resource, self.rows]
        return np.where((total > 0) & (total < PLENTY), 1 - self.free[resource, self.rows] / np.maximum(total, 1), 0.0)


Term = Callable[[Scoring], Floats]
DeviceTerm = Callable[[Scoring], Floats]
"""(rows, D): the score of taking the share of each device."""


def fit(scoring: Scoring) -> Floats:
    """Score nodes by how little is left over, so that large work still finds room (best fit): 0.5 CPU + 0.3 memory +
    0.2 devices, to leave accelerators to work that requests them.
    """
    return 0.5 * scoring.taken(CPU) + 0.3 * scoring.taken(MEMORY) + 0.2 * scoring.taken(DEVICES)


def capacity(scoring: Scoring) -> Floats:
    """Score nodes by free capacity: 0.5 CPU + 0.3 memory + 0.2 network."""
    free = 0.5 * (1 - scoring.used(CPU)) + 0.3 * (1 - scoring.used(MEMORY)) + 0.2 * (1 - scoring.used(NETWORK))
    return np.asarray(free)


def load(scoring: Scoring) -> Floats:
    """Score nodes by low use: 1 - (0.4 CPU + 0.3 memory + 0.2 devices + 0.1 network)."""
    taken = (
        0.4 * scoring.used(CPU) + 0.3 * scoring.used(MEMORY) + 0.2 * scoring.used(DEVICES) + 0.1 * scoring.used(NETWORK)
    )
    return np.asarray(1 - taken)


def balance(scoring: Scoring) -> Floats:
    """Score nodes by how evenly CPU, memory and devices would be left over: a rest of one without the others is
    stranded (the fragmentation that Weng et al., 2023, measure on Alibaba's fleet).
    """
    cpu, memory = scoring.taken(CPU), scoring.taken(MEMORY)
    has = scoring.fleet.total[DEVICES, scoring.rows] > 0
    devices = np.where(has, scoring.taken(DEVICES), cpu)
    most = np.maximum(np.maximum(cpu, memory), devices)
    least = np.minimum(np.minimum(cpu, memory), devices)
    return np.asarray(1 - (most - least))


def tightness(scoring: Scoring) -> Floats:
    """Score nodes by how little is left over in absolute terms: 1 minus half of the CPU left over that of the largest
    node, and half of the device compute left over that of the node with most devices (best fit, as in the experiments
    of Weng et al., 2023).
    """
    fleet, rows, shape = scoring.fleet, scoring.rows, scoring.shape
    most_cpu, most = (max(1, int(fleet.total[of].max(initial=0))) for of in (CPU, DEVICES))
    cpu = scoring.free[CPU, rows] - shape.cpu
    compute = np.maximum(scoring.share[rows], 0).sum(axis=1) - shape.gpus * shape.share
    return np.asarray(1 - 0.5 * cpu / most_cpu - 0.5 * compute / (most * WHOLE))


def fragmentation(scoring: Scoring) -> Floats:
    """Score nodes by how little their fragments grow (`fragments`), at the best device: `1 / (1 + exp(growth))` with
    the growth in devices, 0.5 without growth (fragmentation gradient descent, Weng et al., 2023). Scores are cut to
    whole hundredths, as in the paper's scheduler: smaller differences count as ties, which go to the next node in
    order, so that the fleet fills up from one end.
    """
    if scoring.shape.is_part and scoring.typical is not None:
        return np.asarray(fragmentation_by_device(scoring).max(axis=1, initial=0.0))
    return _least_growth(scoring, all_of_it)


def fragmentation_by_device(scoring: Scoring) -> Floats:
    """Score the devices by `fragmentation`, for a share of one; 0 where it has no room."""
    fleet, rows, shape = scoring.fleet, scoring.rows, scoring.shape
    usable = usable_devices(fleet, shape, ability(fleet, shape), scoring.memory[rows], scoring.share[rows], rows)
    worth = np.zeros(usable.shape)
    if scoring.typical is None:
        return np.where(usable, 0.5, worth)
    like = _first_like(fleet.device_model[rows], scoring.share[rows], scoring.memory[rows])
    at, place = np.nonzero(usable & (like == np.arange(usable.shape[1])))
    share, memory = scoring.share[rows[at]], scoring.memory[rows[at]]
    each = np.arange(len(at))
    share[each, place] -= shape.share
    memory[each, place] -= shape.gpu_memory
    worth[at, place] = _worth(scoring, at, (share, memory), all_of_it)
    return np.asarray(np.take_along_axis(worth, like, axis=1))


def prospects(scoring: Scoring) -> Floats:
    """Like `fragmentation`, but a typical task counts on its likely use of a node (`as_foreseen`), and not on all that
    is free there, so fragments are smaller. A share takes the fullest device that has room. Nodes equal in all inputs
    are computed once.
    """
    fleet, rows = scoring.fleet, scoring.rows
    if not len(rows):
        return np.zeros(0)
    free = scoring.free[[CPU, MEMORY]].T
    of_devices = (scoring.share, scoring.memory, fleet.device_model, fleet.device_spare)
    columns = np.hstack([column[rows] for column in (free, *of_devices)])
    first, like = _distinct(np.asarray(columns, np.int64))
    return _least_growth(scoring.of(rows[first]), as_foreseen)[like]


def _least_growth(scoring: Scoring, account: Account) -> Floats:
    if scoring.typical is None:
        return np.full(len(scoring.rows), 0.5)
    return _worth(scoring, np.arange(len(scoring.rows)), _without(scoring), account)


def _distinct(columns: Ints) -> tuple[list[int], list[int]]:
    """Return the indices of the distinct rows of a table, and for each row the index of its distinct row."""
    lines: list[bytes] = np.ascontiguousarray(columns).view(f"V{columns.itemsize * columns.shape[1]}").ravel().tolist()
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    for place, line in enumerate(lines):
        if numbers.setdefault(line, len(numbers)) == len(first):
            first.append(place)
    return first, [numbers[line] for line in lines]


def _first_like(*columns: NDArray[Any]) -> Ints:
    """Return (rows, D): the first device of the node that is equal in all these columns."""
    same = np.all([column[:, :, None] == column[:, None, :] for column in columns], axis=0)
    return np.asarray(same.argmax(axis=2))


def _worth(scoring: Scoring, at: Ints, devices: tuple[Ints, Ints], account: Account) -> Floats:
    """Return a term's value for nodes of the scoring (`at`, indices into its rows) where the task leaves `devices`: the
    free compute and memory of each device afterwards.
    """
    fleet, free, shape, known = scoring.fleet, scoring.free, scoring.shape, scoring.typical
    if known is None:
        raise AssertionError("nothing is typical")
    rows = scoring.rows
    cpu, memory = free[CPU, rows], free[MEMORY, rows]
    before = fragments(fleet, rows, cpu, memory, scoring.share[rows], scoring.memory[rows], known, account)
    after = fragments(fleet, rows[at], cpu[at] - shape.cpu, memory[at] - shape.memory, *devices, known, account)
    return np.asarray(np.floor(100 / (1 + np.exp((after - before[at]) / WHOLE))) / 100)


def _without(scoring: Scoring) -> tuple[Ints, Ints]:
    """Return (rows, D) twice: the compute and memory of devices left after a task takes the fullest suitable ones."""
    fleet, rows, shape = scoring.fleet, scoring.rows, scoring.shape
    share, memory = scoring.share[rows], scoring.memory[rows]
    if not shape.gpus:
        return share, memory
    usable = usable_devices(fleet, shape, ability(fleet, shape), memory, share, rows)
    order = np.argsort(np.where(usable, share, _NEVER), axis=1, kind="stable")[:, : shape.gpus]
    taken = np.zeros(share.shape, np.int64)
    np.put_along_axis(taken, order, 1, axis=1)
    return share - taken * shape.share, memory - taken * (shape.gpu_memory if shape.share != WHOLE else 0)


def speed(scoring: Scoring) -> Floats:
    """Score nodes by speed: the shortest estimated run time over the one here; 1 everywhere if all are equal."""
    runs = np.array([*(estimate.mean for estimate in scoring.estimates), _NEVER], np.float64)
    if len(scoring.estimates) < 2 or runs[:-1].min() == runs[:-1].max():
        return np.ones(len(scoring.rows))
    fleet = scoring.fleet
    if scoring.shape.gpus:
        here = runs[fleet.device_model[scoring.rows]].min(axis=1)
    else:
        here = runs[fleet.processor[scoring.rows]]
    return np.asarray(here.min() / here) if len(here) else here


def steadiness(scoring: Scoring) -> Floats:
    """Score nodes by 1 minus the recent failure rate of attempts: unstable nodes are avoided."""
    return np.asarray(1 - scoring.fleet.failures[scoring.rows])


def calm(scoring: Scoring) -> Floats:
    """Score nodes by measured load: 1 for low, 0.5 for medium, 0 for high, however long it lasts."""
    return np.asarray(1 - np.minimum(scoring.fleet.levels[scoring.rows], HIGH) / HIGH)


def nearness(scoring: Scoring) -> Floats:
    """Score nodes by the latency to the rest of the fleet: 1 at none, 0.5 at 10 ms."""
    latency = np.array([scoring.fleet.nodes[row].latency for row in scoring.rows.tolist()], np.float64)
    return np.asarray(1 / (1 + latency / (10 * MILLISECOND)))


def thrift(scoring: Scoring) -> Floats:
    """Score nodes by price: the lowest hourly price of a node's devices over this one's; 1 without a price."""
    price = np.array(
        [sum(device.price for device in scoring.fleet.nodes[row].devices) for row in scoring.rows.tolist()], np.float64
    )
    return np.where(price > 0, price[price > 0].min(initial=np.inf) / np.maximum(price, 1), 1.0)


def energy(scoring: Scoring) -> Floats:
    """Score nodes by energy: the least estimated energy of the run anywhere over the least here (power cap times run
    time, of suitable devices); 1 where no power is known. All devices of one model count as drawing the same power.
    """
    fleet, shape = scoring.fleet, scoring.shape
    if not shape.gpus or not len(scoring.rows):
        return np.ones(len(scoring.rows))
    able = ability(fleet, shape).models
    runs = [estimate.mean for estimate in scoring.estimates]
    needs = np.full(len(fleet.likes), np.inf)
    for kind, row in enumerate(fleet.likes):
        for device, model in zip(fleet.nodes[row].devices, fleet.device_model[row].tolist(), strict=False):
            if able[model] and device.power:
                needs[kind] = min(needs[kind], device.power * runs[min(model, len(runs) - 1)])
    here = needs[fleet.kind[scoring.rows]]
    known = np.isfinite(here)
    return np.asarray(np.divide(here.min(), here, out=np.ones(len(here)), where=known))


def images(scoring: Scoring) -> Floats:
    """Score nodes by whether they have the image of the container: 1 or 0; 1 for work without one."""
    return have_image(scoring.fleet, scoring.rows, scoring.shape).astype(np.float64)


def have_image(fleet: Fleet, rows: Ints, shape: Shape) -> NDArray[np.bool_]:
    """Return which of these nodes have the image of a shape; all nodes for a shape without an image."""
    image, nodes = shape.where.image, fleet.nodes
    return np.array([not image or image in nodes[row].images for row in rows.tolist()], bool)


def random(scoring: Scoring) -> Floats:
    """Score nodes at random, from the view's seed: the same seed gives the same scores."""
    drawn = np.random.default_rng(scoring.seed).random(len(scoring.fleet))
    return np.asarray(drawn[scoring.rows])


def random_by_device(scoring: Scoring) -> Floats:
    """Score devices at random."""
    return np.random.default_rng([scoring.seed, 1]).random(scoring.share[scoring.rows].shape)


def first(scoring: Scoring) -> Floats:
    """Score nodes in order of their names."""
    return 1 - scoring.rows / max(1, len(scoring.fleet))


TERMS: dict[str, Term] = {
    "fit": fit,
    "tightness": tightness,
    "fragmentation": fragmentation,
    "prospects": prospects,
    "capacity": capacity,
    "load": load,
    "balance": balance,
    "speed": speed,
    "steadiness": steadiness,
    "calm": calm,
    "nearness": nearness,
    "thrift": thrift,
    "energy": energy,
    "images": images,
    "random": random,
    "first": first,
}

DEVICE_TERMS: dict[str, DeviceTerm] = {
    "fragmentation": fragmentation_by_device,
    "random": random_by_device,
}
"""Terms that score devices; a policy without any of them puts a share on the fullest device that has room."""

WORK_TERMS = frozenset({"fragmentation", "prospects"})
"""Terms that depend on the typical work."""

ROOM_TERMS = frozenset({"fit", "balance"})
"""Terms for the use of whole devices. Where devices are shared, a policy that also weighs any of `WORK_TERMS` uses only
those instead, which consider shares of devices."""


def weights_where(weights: Mapping[str, float], *, shared: bool) -> Mapping[str, float]:
    """Return the weights that apply where devices are shared, or where they are not. If a policy weighs both
    `ROOM_TERMS` and `WORK_TERMS`, drop those of the other case, unless the rest does not add up to more than 0.

    >>> weights_where({"fit": 0.5, "speed": 0.3, "prospects": 1.0}, shared=True)
    {'speed': 0.3, 'prospects': 1.0}
    """
    if WORK_TERMS.isdisjoint(weights) or ROOM_TERMS.isdisjoint(weights):
        return weights
    others = ROOM_TERMS if shared else WORK_TERMS
    left = {name: weight for name, weight in weights.items() if name not in others}
    return left if sum(left.values()) > 0 else weights


def score(scoring: Scoring, weights: Mapping[str, float], terms: Mapping[str, Term] = TERMS) -> Floats:
    """Return the weighted mean of the terms. Raises ValueError unless a term returns one finite number per node."""
    total = np.zeros(len(scoring.rows))
    for name, weight in weights.items():
        value = terms[name](scoring)
        if terms.get(name) is not TERMS.get(name) and (np.shape(value) != total.shape or not np.isfinite(value).all()):
            raise ValueError(f"the term `{name}` gave something other than one finite number for each node")
        total = total + weight * value
    return np.asarray(total / sum(weights.values()))


def score_devices(scoring: Scoring, weights: Mapping[str, float]) -> Floats | None:
    """Return (rows, D): the sum of the weighted terms that score devices; None if there are none."""
    said = [weight * DEVICE_TERMS[name](scoring) for name, weight in weights.items() if name in DEVICE_TERMS]
    return np.asarray(sum(said)) if said else None


def turn_weight(cpu: float, latency: int) -> float:
    """Return a node's weight in weighted round robin: `100 + 50 (1 - cpu)`, plus 30 below 50 ms or 15 below 100 ms.

    `cpu` is the used part of its CPU, `latency` in nanoseconds.
    """
    near = 30 if latency < 50 * MILLISECOND else 15 if latency < 100 * MILLISECOND else 0
    return 100 + 50 * (1 - cpu) + near

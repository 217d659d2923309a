"""A scenario: all external input of a simulated fleet, as data. Together with its seed it determines the whole
simulation.

*Nemeses* define how often each kind of fault occurs; `scenario_of` draws from the seed when each fault begins, how long
it lasts and which node it affects. The drawn faults are written out, so that a scenario can be reduced, saved in a
file, and run again after the way of drawing has changed.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

import msgspec

from poise.engine.machine import RESIZES
from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.fields import parse_or_raise
from poise.model.resources import Device, Node
from poise.policy.suites import POLICIES as SHIPPED_POLICIES
from poise.units import DAY, MILLISECOND, SECOND, parse_duration

FaultKind = Literal[
    "kill-task",
    "kill-keeper",
    "kill-agent",
    "kill-control",
    "die-at-a-door",
    "control-away",
    "power-cut",
    "machine-off",
    "cut",
    "flap",
    "swizzle",
    "lose-messages",
    "double-messages",
    "late-messages",
    "overtaking-messages",
    "disk-full",
    "slow-disk",
    "flip-a-bit",
    "wall-clock",
    "pause-control",
    "pause-agent",
    "out-of-memory",
    "hang",
    "straggle",
    "fail-device",
    "unplug",
    "replug",
    "shrink",
    "policy-raises",
    "policy-loops",
    "policy-lies",
    "policy-is-slow",
    "second-control",
]

Way = Literal["both", "up", "down"]


class FaultSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of fault of a nemesis: `every` is the mean time between two faults, `lasts` their mean duration.
    `amount` is a probability in [0, 1] for lost or duplicated messages, seconds for delays and wrong clocks, a factor
    for slowness.
    """

    fault: FaultKind
    every: str | float
    lasts: str | float = 5
    amount: float = 0.0
    way: Way = "both"


CHANCES: frozenset[FaultKind] = frozenset(("lose-messages", "double-messages"))
"""Kinds whose amount is a probability."""

AMOUNTS: frozenset[FaultKind] = CHANCES | {"late-messages", "slow-disk", "wall-clock", "straggle"}
"""Kinds that need an amount."""

SHORTEST = 100 * MILLISECOND
MOST = 86_400.0


class Nemesis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of kind `nemesis`: a set of faults."""

    name: str
    faults: list[FaultSpec]
    kind: Literal["nemesis"]
    about: str = ""


def compile_nemesis(document: Any) -> Nemesis:
    """Compile a parsed file of kind `nemesis`. Raises SpecError with all errors in it."""
    found = Findings()
    nemesis = found.convert(document, Nemesis)
    for number, spec in enumerate(nemesis.faults if nemesis is not None else ()):
        for field in ("every", "lasts"):
            at = f"faults[{number}].{field}"
            length = found.get(1, parse_or_raise, parse_duration, getattr(spec, field), at, DAY)
            if length < SHORTEST:
                found.add(SpecError("is too short", field=at, need="100ms or more", have=str(getattr(spec, field))))
        most = 1.0 if spec.fault in CHANCES else MOST
        if spec.fault in AMOUNTS and not 0 < spec.amount <= most:
            need, at = f"more than 0, at most {most:g}", f"faults[{number}].amount"
            found.add(SpecError(f"`{spec.fault}` needs an amount", field=at, need=need, have=f"{spec.amount:g}"))
    found.check()
    if nemesis is None:
        raise AssertionError("unreachable")
    return nemesis


class Incident(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One occurrence of a fault: from `at` for `lasts` nanoseconds. `node` is the affected node, if any; `draw` seeds
    the choices that are made when it begins.
    """

    at: int
    fault: FaultKind
    lasts: int = 0
    node: str = ""
    amount: float = 0.0
    way: Way = "both"
    draw: int = 0

    def __str__(self) -> str:
        parts = [self.fault, self.node, self.way if self.way != "both" else ""]
        parts += [f"{self.amount:g}" if self.amount else "", f"for {self.lasts / SECOND:.1f} s" if self.lasts else ""]
        return " ".join(part for part in parts if part)


ActKind = Literal["submit", "cancel", "drain", "empty", "undrain", "quota", "policy"]


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of a user. `document` is the job to submit under `key`, after the job of the key `of` if that is known
    by then. For other acts, `of` is the key of the job to cancel, the node, or the policy to set. `amount` is a quota
    in milli-CPU, 0 for none.
    """

    at: int
    act: ActKind
    key: str = ""
    of: str = ""
    tenant: str = "default"
    document: dict[str, Any] = {}
    amount: int = 0

    @property
    def subject(self) -> str:
        """The subject of the request: a job's key, a node, or a tenant."""
        return self.key or self.of or self.tenant


class Scenario(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All input of a simulation: all faults end at `heals`, all work must be over by `ends`. Times in nanoseconds."""

    seed: int
    nodes: tuple[Node, ...]
    acts: tuple[Act, ...]
    incidents: tuple[Incident, ...]
    heals: int
    ends: int
    policy: str = "poise"
    history: int = 1000
    checkpoint_every: int = 20_000


CONFIGURED = 0.3
"""The share of scenarios in which a user sets another policy."""

POLICIES = ("poise", "poise", "poise", "fifo", "srtf", "round-robin", "static")
RESIZING = 0.7
"""The share of elastic gangs that resize in place; drawn from a separate seed, so that other scenarios keep their
draws.
"""

TENANTS = ("default", "alice", "bob")
MEETS_A_NODE: frozenset[FaultKind] = frozenset(
    (
        "kill-task",
        "kill-keeper",
        "kill-agent",
        "machine-off",
        "cut",
        "flap",
        "pause-agent",
        "out-of-memory",
        "hang",
        "straggle",
        "fail-device",
        "unplug",
        "replug",
        "shrink",
    )
)
INSTANT: frozenset[FaultKind] = frozenset(
    (
        "kill-task",
        "kill-keeper",
        "kill-agent",
        "kill-control",
        "die-at-a-door",
        "power-cut",
        "flip-a-bit",
        "wall-clock",
        "out-of-memory",
        "fail-device",
        "replug",
        "second-control",
    )
)
"""Kinds that have no duration."""


def scenario_of(seed: int, nemeses: Sequence[Nemesis], *, faulty: float = 32.0, after: float = 1800.0) -> Scenario:
    """Draw a scenario from a seed: faults of these nemeses for `faulty` seconds, then `after` seconds for the work to
    finish.
    """
    random = Random(f"scenario {seed}")
    nodes = tuple(_node(random, number) for number in range(random.randint(2, 5)))
    heals = int(faulty * SECOND)
    acts = _acts(random, nodes, heals) + _configuring(Random(f"policies {seed}"), heals)
    incidents = sorted(
        (incident for nemesis in nemeses for spec in nemesis.faults for incident in _draw(random, spec, nodes, heals)),
        key=lambda incident: incident.at,
    )
    return Scenario(
        seed=seed,
        nodes=nodes,
        acts=tuple(sorted(acts, key=lambda act: act.at)),
        incidents=tuple(incidents),
        heals=heals,
        ends=heals + int(after * SECOND),
        policy=random.choice(POLICIES),
        history=random.choice((3, 1000)),
        checkpoint_every=random.choice((30, 200, 20_000)),
    )


def _node(random: Random, number: int) -> Node:
    gpus = random.choice((0, 0, 1, 2, 4))
    name = f"n{number + 1}"
    return Node(
        name=name,
        incarnation="0",
        cpu=random.choice((2, 4, 8)) * 1000,
        memory=16 * 2**30,
        devices=tuple(Device(index=index, memory=16 * 2**30, uuid=f"{name}-{index}") for index in range(gpus)),
    )


def _acts(random: Random, nodes: tuple[Node, ...], heals: int) -> list[Act]:
    most_gpus = max(len(node.devices) for node in nodes)
    acts: list[Act] = []
    for number in range(random.choice((4, 4, 8, 20))):
        at = int(random.uniform(0, heals * 0.8))
        tenant, key = random.choice(TENANTS), f"k{number}"
        after = random.choice(acts) if acts and random.random() < 0.2 else None
        of = after.key if after is not None and after.act == "submit" and after.tenant == tenant else ""
        acts.append(Act(at=at, act="submit", key=key, of=of, tenant=tenant, document=_document(random, most_gpus)))
        if random.random() < 0.1:
            acts.append(Act(at=at + int(random.uniform(0, 10) * SECOND), act="cancel", of=key, tenant=tenant))
    if random.random() < 0.3:
        node, at = random.choice(nodes).name, int(random.uniform(0, heals))
        acts.append(Act(at=at, act="empty" if at % 2 else "drain", of=node))
        acts.append(Act(at=heals, act="undrain", of=node))
    if random.random() < 0.3:
        tenant = random.choice(TENANTS[1:])
        acts.append(
            Act(at=int(random.uniform(0, heals)), act="quota", tenant=tenant, amount=random.choice((2, 4)) * 1000)
        )
        acts.append(Act(at=heals, act="quota", tenant=tenant))
    return acts


def _configuring(random: Random, heals: int) -> list[Act]:
    """Set another policy, in some scenarios."""
    if random.random() >= CONFIGURED:
        return []
    return [Act(at=int(random.uniform(0, heals)), act="policy", key="policy", of=random.choice(POLICIES))]


def _document(random: Random, most_gpus: int) -> dict[str, Any]:
    """Return a random job, such as users write."""
    seconds = random.choice((0.02, 0.5, 2, 8, 20))
    when = random.choice((["lost", "killed"], ["failed", "killed", "signal", "oom", "hung", "lost"]))
    retry = {"limit": random.choice((0, 2, 5)), "backoff": random.choice(("100ms", "2s")), "when": when}
    document: dict[str, Any] = {"retry": retry}
    resources: dict[str, Any] = {"cpu": random.choice((0.5, 1, 1, 2))}
    if random.random() < 0.3:
        resources["memory"] = random.choice(("2GiB", "8GiB"))
    if most_gpus and random.random() < 0.5:
        resources |= _devices(random, most_gpus)
    kind = random.random()
    if kind < 0.2:
        tasks: dict[str, Any] = {}
        for number in range(random.randint(2, 5)):
            needs = [f"t{other}" for other in range(number) if random.random() < 0.5]
            tasks[f"t{number}"] = {"run": _work(random, seconds), "needs": needs, "retry": retry}
        return {"kind": "graph", "tasks": tasks}
    if kind < 0.35:
        document["workers"] = random.choice((2, 3))
    elif kind < 0.5:
        document |= {"workers": random.choice(("1..3", "2..4")), "checkpoint": "1s"}
        seconds = max(seconds, 8)
    elif kind < 0.6:
        document["parts"] = random.choice((3, 8))
        seconds = min(seconds, 2)
    if random.random() < 0.5:
        document["priority"] = random.choice(("urgent", "urgent", "high", "low", "low"))
    if document.get("priority") == "low" and random.random() < 0.5:  # urgent jobs may preempt it
        seconds = 40
        document |= {"checkpoint": "1s", "expect": "40s"}
    elif random.random() < 0.4:
        document |= {"checkpoint": "1s", "expect": f"{max(1, seconds):.0f}s"}
    if random.random() < 0.15:
        document["preemptible"] = False
    if random.random() < 0.3:
        document["lease"] = "exclusive"
    if random.random() < 0.5:
        document["hang"] = random.choice(("2s", "10s"))
    made = {**document, "run": _work(random, seconds), "resources": resources}
    if ".." in str(document.get("workers", "")) and Random(f"resizes {made}").random() < RESIZING:
        made["run"] = made["run"].replace("work", RESIZES)
    return made


def _devices(random: Random, most: int) -> dict[str, Any]:
    """Request whole devices, or a share of one."""
    if random.random() < 0.4:
        return {"gpu": 1, "gpu_share": random.choice((0.2, 0.4, 0.8)), "gpu_memory": random.choice(("2GiB", "8GiB"))}
    return {"gpu": random.randint(1, min(2, most))}


def _work(random: Random, seconds: float) -> str:
    return f"work {seconds * random.uniform(0.5, 1.5):.3f}"


def _draw(random: Random, spec: FaultSpec, nodes: tuple[Node, ...], heals: int) -> list[Incident]:
    """Draw incidents with exponential gaps, so that any two faults may coincide."""
    incidents, at = [], 0.0
    every, mean = parse_duration(spec.every) / SECOND, parse_duration(spec.lasts) / SECOND
    while (at := at + random.expovariate(1 / every)) * SECOND < heals:
        instant = spec.fault in INSTANT
        lasts = 0 if instant else int(random.expovariate(1 / mean) * SECOND) + 100 * MILLISECOND
        incidents.append(
            Incident(
                at=int(at * SECOND),
                fault=spec.fault,
                lasts=lasts,
                node=random.choice(nodes).name if spec.fault in MEETS_A_NODE else "",
                amount=spec.amount,
                way=spec.way,
                draw=random.randrange(2**32),
            )
        )
    return incidents


def check_scenario(scenario: Scenario) -> None:
    """Check a scenario. Raises SpecError for unknown nodes or policies, and where the times allow no end."""
    names = [node.name for node in scenario.nodes]
    found = Findings()
    if scenario.policy not in SHIPPED_POLICIES:
        known = ", ".join(sorted(SHIPPED_POLICIES))
        found.add(SpecError("there is no such policy", field="policy", need=known, have=scenario.policy))
    if len(set(names)) < len(names):
        found.add(SpecError("two nodes have the same name", field="nodes", have=", ".join(names)))
    if not 0 <= scenario.heals < scenario.ends or scenario.history < 0 or scenario.checkpoint_every < 1:
        found.add(SpecError("0 ≤ heals < ends, history ≥ 0 and checkpoint_every ≥ 1", field="ends"))
    for number, incident in enumerate(scenario.incidents):
        if incident.fault in MEETS_A_NODE and incident.node not in names:
            found.add(SpecError("this node does not exist", field=f"incidents[{number}].node", have=incident.node))
        if not (math.isfinite(incident.amount) and abs(incident.amount) <= MOST):
            found.add(SpecError("the amount is absurd", field=f"incidents[{number}].amount", have=str(incident.amount)))
    found.check()


def smaller(scenario: Scenario, acts: Sequence[Act], incidents: Sequence[Incident]) -> Scenario:
    """Return the scenario with only these acts and incidents."""
    return msgspec.structs.replace(scenario, acts=tuple(acts), incidents=tuple(incidents))

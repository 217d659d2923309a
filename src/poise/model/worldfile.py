"""Compile a world file: the environment in which a trace is simulated.

    kind: world
    restart: {checkpoint: 10m, save: 10s, restore: 1m}
    scaling: {loss: 2%, rack: 95%, zone: 90%, apart: 80%}
    sharing: 30%
    stragglers: {share: 5%, factor: 1.5, lasts: 1h}
    losses: {mtbf: 30d, mttr: 2h}
    changes: [{at: 2h, node: big-0, there: false}]
    telemetry: {every: 1m, noise: 10%, delay: 5s}
    power: {idle: 16%, busy: 59%, kg_per_kwh: 0.4}
    serving: {start: 30s, replicas: [{name: h100, count: 2, batch: [[1, 30ms], [8, 44ms]], price: 4.1}]}

What is left out does not happen and costs nothing; restarts then cost what the trace's reader says. Only the simulated
world has this information: a policy sees what it would see live. `compile_world` takes the parsed document and raises
`SpecError` with every error.
"""

import math
from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.fields import Quantity, parse_or_raise
from poise.model.intensity import Intensity, check_hours
from poise.model.servers import HangUp, Measured, Server, Serving, Speed, Table
from poise.model.spec import check_name
from poise.model.workload import LINEAR, Scaling
from poise.units import DAY, SECOND, format_duration, parse_duration, parse_share

LONGEST = 40_000 * DAY
LEAST = SECOND
MOST_CHANGES = 10_000
MOST_FACTOR = 1000.0
MOST_SERVERS = 1000
"""Maximum number of replicas of a world."""

MOST_ITEMS = 10_000_000
"""Maximum number of concurrent requests, or tokens, in a table of durations."""

MOST_CACHE = 10_000_000_000
"""Maximum number of tokens of prompts that a replica keeps."""

MOST_SIZES = 1000
"""Maximum number of rows of such a table."""

MOST_PRICE = 1e6
"""Maximum price per hour."""


class RestartSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Cost of stopping and restarting, for all work."""

    checkpoint: Quantity | None = None
    save: Quantity | None = None
    restore: Quantity | None = None
    saves: bool | None = None


class ScalingSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Scaling of gangs."""

    loss: Quantity = 0
    rack: Quantity = 1
    zone: Quantity = 1
    apart: Quantity = 1


class StragglersSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Nodes that are slow for a while."""

    share: Quantity
    factor: float
    lasts: Quantity = "1h"


class LossesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Nodes that are lost, and come back."""

    mtbf: Quantity
    mttr: Quantity = "1h"
    detected: Quantity = "10s"


class ChangeSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A node that joins or leaves."""

    at: Quantity
    node: str
    there: bool


class TelemetrySpec(msgspec.Struct, forbid_unknown_fields=True):
    """Load reports of nodes."""

    every: Quantity = "1m"
    noise: Quantity = 0
    delay: Quantity = 0


class PowerSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Power draw of devices."""

    idle: Quantity | None = None
    busy: Quantity | None = None
    kg_per_kwh: float | list[float] | None = None
    flexible: Quantity = 0


Takes = list[tuple[int, Quantity]]
"""Sizes, each with its duration."""


class MeasuredSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A file with measured speeds, and the selected rows."""

    file: str
    model: str
    hardware: str
    devices: int = 8


class ReplicaSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Equal available replicas, and their speed."""

    name: str
    count: int = 1
    batch: Takes = []
    prompt: Takes = []
    token: Takes = []
    measured: MeasuredSpec | None = None
    slots: int = 0
    cache: int = 0
    price: float = 0.0


class HangUpSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Clients that do not wait for the answer."""

    share: Quantity
    after: Quantity = "5s"


class ServingSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Servers of requests."""

    replicas: list[ReplicaSpec] = []
    start: Quantity = 0
    spread: Quantity = 0
    hang_up: HangUpSpec | None = None


class WorldSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str = ""
    name: str = "world"
    restart: RestartSpec | None = None
    scaling: ScalingSpec | None = None
    sharing: Quantity = 0
    stragglers: StragglersSpec | None = None
    losses: LossesSpec | None = None
    changes: list[ChangeSpec] = []
    telemetry: TelemetrySpec | None = None
    power: PowerSpec | None = None
    serving: ServingSpec | None = None


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in nanoseconds, and whether work resumes where it was stopped; None: as the trace's reader says."""

    checkpoint: int | None = None
    save: int | None = None
    restore: int | None = None
    saves: bool | None = None


class Stragglers(msgspec.Struct, frozen=True, kw_only=True):
    """Fraction of nodes that are slow at any time; work takes `factor` times as long there, for `lasts` in the mean."""

    share: float
    factor: float
    lasts: int


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """Mean time between losses of one node, mean time to its return, and time to detect a loss."""

    mtbf: int
    mttr: int
    detected: int


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A node that joins or leaves at an instant."""

    at: int
    node: str
    there: bool


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """Interval of the nodes' load reports, which come `delay` late with relative `noise` (a standard deviation)."""

    every: int
    noise: float
    delay: int


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled file. `sharing` is the fraction by which work slows down on a device whose rest is held by others.
    Fields of the power model are None for the default. `intensity` has the CO2e of a kWh by hour of the day or of the
    week, if it varies; the trace begins on a Monday at midnight. Jobs may wait up to `flexible` nanoseconds for cleaner
    hours. `serving` is for requests; each of its replicas is a node.
    """

    name: str = "plain"
    restart: Restart = Restart()
    scaling: Scaling = LINEAR
    sharing: float = 0.0
    stragglers: Stragglers | None = None
    losses: Losses | None = None
    changes: tuple[Change, ...] = ()
    telemetry: Telemetry | None = None
    idle: float | None = None
    busy: float | None = None
    kg_per_kwh: float | None = None
    intensity: Intensity | None = None
    flexible: int = 0
    serving: Serving | None = None


PLAIN = World()
"""A world in which nothing happens but the trace."""


def compile_world(document: Any) -> World:
    """Compile a parsed file."""
    found = Findings()
    top = found.convert(document, WorldSpec)
    made = None if top is None else _compile(top, found)
    found.check(_example)
    if made is None:
        raise AssertionError("a document that is not compiled has something wrong in it")
    return made


def check_nodes(world: World, names: set[str]) -> None:
    """Raise `SpecError` for changes of nodes that the fleet does not have."""
    found = Findings()
    for place, change in enumerate(world.changes):
        if change.node not in names:
            need = f"one of the {len(names)} nodes of the fleet"
            found.add(
                SpecError(
                    "this node does not exist", code="E105", field=f"changes[{place}].node", need=need, have=change.node
                )
            )
    found.check(lambda field: "`poise nodes --fleet FILE` lists them")


_EXAMPLES = {
    "kind": "kind: world",
    "restart": "restart: {checkpoint: 10m, save: 10s, restore: 1m}",
    "scaling": "scaling: {loss: 2%, rack: 95%, zone: 90%, apart: 80%}",
    "sharing": "sharing: 30%",
    "stragglers": "stragglers: {share: 5%, factor: 1.5, lasts: 1h}",
    "losses": "losses: {mtbf: 30d, mttr: 2h}",
    "changes": "changes: [{at: 2h, node: n1, there: false}]",
    "telemetry": "telemetry: {every: 1m, noise: 10%, delay: 5s}",
    "power": "power: {idle: 16%, busy: 59%, kg_per_kwh: 0.4}",
    "name": "name: rough",
    "serving": "serving: {start: 30s, replicas: [{name: h100, count: 2, batch: [[1, 30ms], [8, 44ms]]}]}",
}


def _example(field: str) -> str:
    return _EXAMPLES.get(field.partition(".")[0].partition("[")[0], _EXAMPLES["kind"])


def _compile(top: WorldSpec, found: Findings) -> World:
    if top.kind != "world":
        found.add(SpecError("this file is not a world", field="kind", need="world", have=top.kind, hint="kind: world"))
    found.get(None, check_name, top.name, "name")

    def time(value: Quantity | None, field: str, least: int = 0) -> int:
        got = found.get(least, parse_or_raise, parse_duration, 0 if value is None else value, field, LONGEST)
        if got < least:
            need = f"{format_duration(least)} or more"
            found.add(SpecError("the time is too short", code="E103", field=field, need=need, have=str(value)))
        return got

    def maybe(value: Quantity | None, field: str) -> int | None:
        return None if value is None else time(value, field)

    def share(value: Quantity, field: str) -> float:
        return found.get(0, parse_or_raise, parse_share, value, field, 1000) / 1000

    restart, scaling, power = top.restart, top.scaling, top.power
    return World(
        name=top.name,
        restart=Restart()
        if restart is None
        else Restart(
            checkpoint=maybe(restart.checkpoint, "restart.checkpoint"),
            save=maybe(restart.save, "restart.save"),
            restore=maybe(restart.restore, "restart.restore"),
            saves=restart.saves,
        ),
        scaling=LINEAR
        if scaling is None
        else Scaling(
            loss=share(scaling.loss, "scaling.loss"),
            apart=(
                1.0,
                share(scaling.rack, "scaling.rack"),
                share(scaling.zone, "scaling.zone"),
                share(scaling.apart, "scaling.apart"),
            ),
        ),
        sharing=share(top.sharing, "sharing"),
        stragglers=None if top.stragglers is None else _stragglers(top.stragglers, share, time, found),
        losses=None
        if top.losses is None
        else Losses(
            mtbf=time(top.losses.mtbf, "losses.mtbf", 60 * SECOND),
            mttr=time(top.losses.mttr, "losses.mttr", LEAST),
            detected=time(top.losses.detected, "losses.detected"),
        ),
        changes=_changes(top.changes, time, found),
        telemetry=None
        if top.telemetry is None
        else Telemetry(
            every=time(top.telemetry.every, "telemetry.every", LEAST),
            noise=share(top.telemetry.noise, "telemetry.noise"),
            delay=time(top.telemetry.delay, "telemetry.delay"),
        ),
        idle=None if power is None or power.idle is None else share(power.idle, "power.idle"),
        busy=None if power is None or power.busy is None else share(power.busy, "power.busy"),
        kg_per_kwh=_carbon(power.kg_per_kwh, found) if power and isinstance(power.kg_per_kwh, int | float) else None,
        intensity=_intensity(power.kg_per_kwh, found) if power and isinstance(power.kg_per_kwh, list) else None,
        flexible=0 if power is None else _flexible(power, time, found),
        serving=None if top.serving is None else _serving(top.serving, share, time, found),
    )


def _serving(spec: ServingSpec, share: Any, time: Any, found: Findings) -> Serving:
    servers: dict[str, Server] = {}
    if not 1 <= sum(max(1, one.count) for one in spec.replicas) <= MOST_SERVERS:
        need = f"1 to {MOST_SERVERS} of them"
        found.add(SpecError("invalid number of replicas", code="E103", field="serving.replicas", need=need))
        return Serving(servers=())
    for place, one in enumerate(spec.replicas):
        at = f"serving.replicas[{place}]"
        found.get(None, check_name, one.name, f"{at}.name")
        speed = _speed(one, time, found, at)
        for field, value, least, most in (
            ("count", one.count, 1, MOST_SERVERS),
            ("slots", one.slots, 0, MOST_ITEMS),
            ("cache", one.cache, 0, MOST_CACHE),
            ("price", one.price, 0, MOST_PRICE),
        ):
            if not least <= value <= most:
                need = f"{least} to {most:g}"
                found.add(
                    SpecError(
                        "the number is out of range", code="E103", field=f"{at}.{field}", need=need, have=f"{value:g}"
                    )
                )
        for number in range(1, one.count + 1):
            name = one.name if one.count == 1 else f"{one.name}-{number}"
            if name in servers:
                what = f"there is another replica `{name}`"
                found.add(SpecError(what, code="E107", field=f"{at}.name", have=name))
            servers[name] = Server(name=name, speed=speed, price=one.price, slots=one.slots, cache=one.cache)
    hang_up = spec.hang_up
    return Serving(
        servers=tuple(servers.values()),
        start=time(spec.start, "serving.start"),
        spread=share(spec.spread, "serving.spread"),
        hang_up=None
        if hang_up is None
        else HangUp(
            share=share(hang_up.share, "serving.hang_up.share"), after=time(hang_up.after, "serving.hang_up.after")
        ),
    )


def _speed(spec: ReplicaSpec, time: Any, found: Findings, at: str) -> Speed:
    """Compile a speed from exactly one of `batch`, `token` and `measured`; `prompt` goes with tokens."""
    ways = [name for name in ("batch", "token", "measured") if getattr(spec, name)]
    if len(ways) != 1 or (spec.prompt and ways != ["token"]):
        what = "how fast it is, is said in one way: `batch`; `token`, and perhaps `prompt`; or `measured`"
        hint = "batch: [[1, 30ms], [8, 44ms]]"
        have = ", ".join([*ways, *(["prompt"] if spec.prompt else [])]) or "none of them"
        found.add(SpecError(what, code="E103", field=at, have=have, hint=hint))
    measured = spec.measured
    return Speed(
        step=_table(spec.batch or spec.token, f"{at}.{'batch' if spec.batch else 'token'}", time, found),
        prompt=_table(spec.prompt, f"{at}.prompt", time, found),
        tokens=not spec.batch,
        measured=None
        if measured is None
        else Measured(file=measured.file, model=measured.model, hardware=measured.hardware, devices=measured.devices),
    )


def _table(rows: Takes, field: str, time: Any, found: Findings) -> Table:
    made = tuple((size, float(time(takes, f"{field}[{place}]"))) for place, (size, takes) in enumerate(rows))
    sizes = [size for size, _ in made]
    if sizes and not (sizes[0] >= 1 and sizes[-1] <= MOST_ITEMS and len(sizes) <= MOST_SIZES):
        need = f"sizes from 1 to {MOST_ITEMS}, {MOST_SIZES} of them at most"
        found.add(SpecError("the sizes are out of range", code="E103", field=field, need=need, have=str(sizes)[:80]))
    if sizes != sorted(set(sizes)) or any(takes <= 0 for _, takes in made):
        need = "sizes that rise, and take some time each"
        found.add(SpecError("the table is not sorted", code="E103", field=field, need=need, have=str(rows)[:80]))
    return made


def _stragglers(spec: StragglersSpec, share: Any, time: Any, found: Findings) -> Stragglers:
    part = share(spec.share, "stragglers.share")
    if part >= 1:
        found.add(
            SpecError(
                "the share of slow nodes must be below 1",
                code="E103",
                field="stragglers.share",
                need="less than 1",
                have=str(part),
            )
        )
    if not (math.isfinite(spec.factor) and 1 < spec.factor <= MOST_FACTOR):
        need = f"more than 1, at most {MOST_FACTOR:g}"
        found.add(
            SpecError(
                "the factor is out of range", code="E103", field="stragglers.factor", need=need, have=f"{spec.factor:g}"
            )
        )
    return Stragglers(share=part, factor=spec.factor, lasts=time(spec.lasts, "stragglers.lasts", LEAST))


def _changes(specs: list[ChangeSpec], time: Any, found: Findings) -> tuple[Change, ...]:
    if len(specs) > MOST_CHANGES:
        need, have = f"at most {MOST_CHANGES}", str(len(specs))
        found.add(SpecError("there are too many changes", code="E103", field="changes", need=need, have=have))
        return ()
    made = [
        Change(at=time(spec.at, f"changes[{place}].at"), node=spec.node, there=spec.there)
        for place, spec in enumerate(specs)
    ]
    return tuple(sorted(made, key=lambda change: change.at))


def _intensity(hours: list[float], found: Findings) -> Intensity:
    return Intensity(hours=check_hours(hours, "power.kg_per_kwh", found))


def _flexible(power: PowerSpec, time: Any, found: Findings) -> int:
    flexible: int = time(power.flexible, "power.flexible")
    if flexible and not isinstance(power.kg_per_kwh, list):
        what, hint = "no hour is cleaner than another", "kg_per_kwh: [0.3, …], 24 or 168 numbers"
        found.add(SpecError(what, field="power.flexible", need="`kg_per_kwh` by hour", hint=hint))
    return flexible


def _carbon(value: float, found: Findings) -> float:
    if not (math.isfinite(value) and 0 <= value <= 10):
        found.add(
            SpecError(
                "the number is out of range", code="E103", field="power.kg_per_kwh", need="0 to 10", have=f"{value:g}"
            )
        )
        return 0.0
    return value

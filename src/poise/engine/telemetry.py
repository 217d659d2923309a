"""Simulated telemetry of a gang: the reports of its nodes for each minute, with a fault in one member, or none.

    gang = gang_of(7)
    gang.values[minute, member, signal]

All members work in step: load, pauses for checkpoints and evaluations, and drift are common to them. Each has harmless
offsets, and autocorrelated noise. The first member coordinates, and so has more load on its CPU and network. Now and
then another process runs on a node for a minute or two, and some values are missing.
"""

from random import Random
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from poise.model.usage import SIGNALS

FaultKind = Literal["straggler", "slow-disk", "throttling", "leak", "link"]
FAULTS: tuple[FaultKind, ...] = ("straggler", "slow-disk", "throttling", "leak", "link")
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)

AT = {name: number for number, name in enumerate(SIGNALS)}

USUAL = {
    "cpu": 300.0, "memory": 450.0, "disk": 60.0, "network": 400.0, "device": 900.0, "device_memory": 800.0,
    "device_bandwidth": 550.0, "power": 250_000.0, "device_power": 2_400_000.0, "failures": 0.0,
}  # fmt: skip
"""Usual values of a node of eight devices that trains: thousandths and milliwatts, as in `SIGNALS`."""

OFFSET, NOISE, MEMORY = 0.02, 0.015, 0.6
"""Relative deviation between members, relative noise of each minute, and the part of a minute's noise that remains in
the next.
"""

BURSTS, MISSING = 1 / 600, 0.005
"""Probabilities by member and minute: another process starts; a value is missing."""


class Gang(NamedTuple):
    """The telemetry. `member` has the fault from the minute `since` on (-1: no fault)."""

    values: npt.NDArray[np.float64]
    fault: FaultKind | None
    member: int
    since: int


def gang_of(seed: int, *, minutes: int = 60, size: int | None = None, sick: bool | None = None) -> Gang:
    """Return the gang of a seed; half of all gangs have a fault, unless `sick` is given."""
    random = Random(f"gang {seed}")
    size = size if size is not None else random.choice(SIZES)
    noise = np.random.default_rng(random.randrange(2**32))
    sick = random.random() < 0.5 if sick is None else sick
    fault, member, since = random.choice(FAULTS), random.randrange(size), random.randrange(10, minutes - 15)
    values = _healthy(size, minutes, random, noise)
    if sick:
        _break(values, fault, member, since, random, noise)
    values = np.maximum(values, 0.0)
    for name in ("cpu", "memory", "disk", "network", "device", "device_memory", "device_bandwidth"):
        values[:, :, AT[name]] = np.minimum(values[:, :, AT[name]], 1000.0)
    values[noise.random(values.shape) < MISSING] = np.nan
    return Gang(values, fault if sick else None, member if sick else -1, since if sick else -1)


def _healthy(size: int, minutes: int, random: Random, noise: np.random.Generator) -> npt.NDArray[np.float64]:
    usual = np.array([USUAL[name] for name in SIGNALS])
    load = np.ones(minutes) + 0.05 * np.sin(np.arange(minutes) / random.uniform(5, 30))
    every = random.randrange(10, 30)
    load[::every] *= random.uniform(0.4, 0.8)  # a checkpoint, or an evaluation
    offsets = 1.0 + OFFSET * noise.standard_normal((size, len(SIGNALS)))
    shocks = NOISE * noise.standard_normal((minutes, size, len(SIGNALS)))
    for minute in range(1, minutes):
        shocks[minute] += MEMORY * shocks[minute - 1]
    values = usual * offsets * (1.0 + shocks)
    for name in ("cpu", "network", "device", "device_bandwidth", "power", "device_power"):
        values[:, :, AT[name]] *= load[:, None]
    values[::every, :, AT["disk"]] += random.uniform(200, 600)
    values[:, 0, AT["cpu"]] *= random.uniform(1.2, 1.8)
    values[:, 0, AT["network"]] *= random.uniform(1.1, 1.4)
    for minute, member in np.argwhere(noise.random((minutes, size)) < BURSTS):
        name = random.choice(("cpu", "disk", "network", "memory"))
        values[minute : minute + random.randint(1, 2), member, AT[name]] += random.uniform(100, 500)
    return values


def _break(
    values: npt.NDArray[np.float64],
    fault: FaultKind,
    member: int,
    since: int,
    random: Random,
    noise: np.random.Generator,
) -> None:
    """Add a fault. In synchronous training all members wait for the slow one; the other devices are less busy."""
    lasts = len(values) - since
    ramp = np.minimum(1.0, np.arange(1, lasts + 1) / random.uniform(1, 3))
    others = np.arange(values.shape[1]) != member
    slow = random.uniform(1.25, 2.0)
    match fault:
        case "straggler":
            for name in ("device", "device_bandwidth", "device_power", "network", "cpu"):
                values[since:, others, AT[name]] *= (1 - (1 - 1 / slow) * ramp)[:, None]
            values[since:, member, AT["network"]] *= 1 - (1 - 1 / slow) * ramp
        case "slow-disk":
            values[since:, member, AT["disk"]] += random.uniform(250, 700) * ramp * noise.uniform(0.7, 1.3, lasts)
            values[since:, :, AT["device"]] *= 1 - 0.1 * ramp[:, None]
        case "throttling":
            values[since:, member, AT["device_power"]] *= 1 - random.uniform(0.2, 0.45) * ramp
            for name in ("device", "device_bandwidth"):
                values[since:, others, AT[name]] *= (1 - (1 - 1 / slow) * ramp)[:, None]
            values[since:, others, AT["device_power"]] *= 1 - 0.1 * ramp[:, None]
        case "leak":
            values[since:, member, AT["memory"]] += random.uniform(8, 40) * np.arange(1, lasts + 1)
        case "link":
            values[since:, member, AT["network"]] *= 1 - random.uniform(0.4, 0.8) * ramp
            values[since:, :, AT["device"]] *= (1 - random.uniform(0.1, 0.4) * ramp)[:, None]

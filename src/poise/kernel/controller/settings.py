"""Settings of a control plane, and the times that its parts share."""

from typing import Any

import msgspec

from poise.decoding import convert
from poise.model.events import Began
from poise.model.times import Times
from poise.model.triggers import Triggers
from poise.policy.recipe import Recipe
from poise.policy.split import undivided
from poise.units import MILLISECOND

ROUND = 200 * MILLISECOND
"""While work waits, a round is decided at least at this interval, even without events."""

TIMES = Times()
HEARTBEAT = TIMES.heartbeat

PER_NODE = 100_000
"""Nanoseconds per node of the fleet. Work over all nodes runs at most once in that total time: the check for silent
nodes, and the round for nodes that have joined. Otherwise each of many joining nodes would cause it.
"""

FOREVER = 2**62


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a control plane; times in nanoseconds.

    A node is suspect after a silence of `suspect_after` and lost after `dead_after`. Both are extended by the time that
    it announced to be silent beyond a `HEARTBEAT`. With a `dead_after` of 0 silence does not count: the system that
    runs the nodes reports lost ones (`GiveUp`). While more than `outage_share` thousandths of the fleet are missing, no
    node is lost, nor for `outage_settle` after that (0: for `dead_after`), but for at most `outage_hold` in total (see
    `Outage`).

    A lost, undeclared node without work is forgotten after `forget_after` (0: never). A drained one is retained, so
    that it is drained when it comes back. Exclusive work has a `lease`. While work waits, a round is decided at least
    each `poll` (0: only after events, or at the instant that the last plan named). With an `every`, rounds are decided
    at its multiples only. `fleet` is the name of the declared fleet and `declared` its nodes, if there is one. `policy`
    decides from the beginning, until another one is configured; `recipe`, `code` and `asked` are as in `Began`. With
    `traced`, the environment of each attempt carries the context of its span. The fleet `grows` if other systems
    allocate nodes on request.
    """

    policy: str = "poise"
    history: int = 10_000
    history_tasks: int = 15_000
    checkpoint_every: int = 20_000
    suspect_after: int = HEARTBEAT + TIMES.suspect
    dead_after: int = TIMES.dead_local
    outage_share: int = 500
    outage_hold: int = TIMES.outage_hold
    outage_settle: int = 0
    forget_after: int = 0
    poll: int = ROUND
    every: int = 0
    seed: int = 0
    lease: int = TIMES.lease
    version: str = ""
    throughputs: dict[str, float] = {}
    fleet: str = ""
    declared: tuple[str, ...] = ()
    recipe: dict[str, Any] = {}
    code: str = ""
    asked: float = 0.0
    traced: bool = False
    grows: bool = False


def with_latest_policy(settings: Settings, began: Began | None) -> Settings:
    """Return the settings with the policy in the log, if that was configured later than the one in the settings."""
    if began is None or began.asked <= settings.asked:
        return settings
    return msgspec.structs.replace(
        settings, policy=began.policy, recipe=began.recipe, code=began.code, asked=began.asked
    )


def triggers_of(recipe: dict[str, Any]) -> Triggers:
    """Return the thresholds of the triggers in a recipe; with a trial, those of the policy for the rest."""
    recipe = undivided({"recipe": recipe})["recipe"]
    return convert(recipe, Recipe).triggers if recipe else Triggers()

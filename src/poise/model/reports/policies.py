"""Reports of the policy that decides, and of policies in shadow."""

from typing import Annotated, Any, Literal

import msgspec


class TrialReport(msgspec.Struct, frozen=True, kw_only=True):
    """A trial on a part of the nodes: `policy` decides for the selected `nodes`, `rest` for the others. `on` are the
    names of the nodes for which it decides now, and `lent` of those for which `rest` decides until their work has
    ended. While the trial is `paused`, for this reason, `rest` decides for all nodes.
    """

    policy: str
    rest: str
    nodes: str
    on: tuple[str, ...] = ()
    lent: tuple[str, ...] = ()
    paused: str = ""


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The current scheduling policy: its name in the log, and the content of its file. The name ends with a digest if
    the policy comes from a file or a package. `asked` is the time of the request for it, in seconds since 1970; 0 for
    the default. `trial` is set while two policies decide, each for a part of the nodes.
    """

    policy: str
    asked: float = 0.0
    recipe: dict[str, Any] = {}
    trial: TrialReport | None = None


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A view, by its revision, on which two policies decide differently: the decisions that only one of them makes."""

    revision: int
    live: tuple[str, ...]
    shadow: tuple[str, ...]


class PairedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure under the current policy (`live`) and under the other one (`shadow`): nanoseconds, a count or a share.
    Less is better, except for `use`. `low` and `high` are the confidence interval of the `difference`.
    """

    name: str
    of: Literal["time", "count", "share"]
    live: float
    shadow: float
    difference: float
    low: float
    high: float


class WorldReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The simulated fleet of a policy in shadow, compared with that of the current policy: `hours` of both, up to `at`
    (seconds since 1970), which was `late` seconds ago. `level` is the confidence level of the intervals of the
    `figures`. Few `jobs` have no figures; `ended` of them have ended in both fleets. `guessed` counts units whose run
    times were estimated, and `converted` those whose run times were measured on another device model. `left_out` counts
    work that is not simulated, by kind. `failed` is the reason why the policy no longer decides there. `cpu` is the
    fraction of a core that the simulation used.
    """

    at: float
    late: float
    hours: float
    jobs: int
    ended: int
    level: float
    figures: tuple[PairedFigure, ...] = ()
    guessed: int = 0
    converted: int = 0
    left_out: dict[str, int] = {}
    failed: str = ""
    cpu: float = 0.0


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in shadow. `since` is a time in seconds since 1970. `rounds` is the number of rounds in which it was
    asked; in `same` of them it decided like the current policy. `live_alone` and `shadow_alone` count decisions that
    only one of the two made. `passed_over` counts the views it skipped while it was busy or resting, and `failed` the
    rounds in which it had no plan. `differences` are the latest ones, and `units` those on which the two differed most
    often. `world` reports on its simulated fleet, once there are results.
    """

    policy: str
    since: float = 0.0
    rounds: int = 0
    same: int = 0
    passed_over: int = 0
    failed: int = 0
    live_alone: int = 0
    shadow_alone: int = 0
    differences: tuple[ShadowDifference, ...] = ()
    units: dict[str, int] = {}
    world: WorldReport | None = None


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to make a policy in shadow the scheduling policy; `force` ignores its figures. With `nodes`, it decides
    only for a share of the nodes (`25%`), for named ones (`n1,n2`), or for those with a label (`zone=a`).
    """

    force: bool = False
    nodes: str = ""


class PolicyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a scheduling policy: its `name`, or the content of a policy file."""

    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    document: dict[str, Any] | None = None

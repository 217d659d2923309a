"""Reports of rules and of their tests."""

from typing import Annotated, Any

import msgspec

from poise.model.reports.policies import PairedFigure


class RuleFiring(msgspec.Struct, frozen=True, kw_only=True):
    """The last firing of a rule for a `subject`: a node, a service, or empty for the fleet. `outcome` is `done`,
    `shadow`, `asked`, `denied`, or `adjusted` after it has changed memory limits again. `have` is the observation that
    triggered it. `actions` were carried out; `failed` is the reason why others were not. `over` means that it has ended
    and its actions are undone. `at` is in seconds since 1970. While it asks for approval, `answer` is the command that
    gives it; `deny` in the place of `approve` refuses it.
    """

    subject: str
    at: float
    outcome: str
    have: str
    actions: tuple[str, ...] = ()
    failed: str = ""
    over: bool = False
    answer: str = ""


class RuleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and its state. It is `about` each `node`, each `service` or the `fleet`; `scope` is the same, or the names
    of its nodes or services. `why_not` is the reason why it does not act now. `knob` is the value that its control loop
    has set. `firings` are its latest firings, latest first.
    """

    name: str
    mode: str
    scope: str
    actions: tuple[str, ...]
    why_not: str = ""
    knob: str = ""
    firings: tuple[RuleFiring, ...] = ()
    about: str = "fleet"


class RulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force. `evaluated` is the time of the last evaluation in seconds since 1970; 0 before the first.
    `spent` is the number of actions in the last hour; `budget` is its limit.
    """

    rules: tuple[RuleReport, ...] = ()
    evaluated: float = 0.0
    budget: int = 0
    spent: int = 0


class RulesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a rules file."""

    document: dict[str, Any]


class RuleAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a rule that asks for approval, for a `subject`: a node, or empty for the fleet."""

    rule: Annotated[str, msgspec.Meta(max_length=128)]
    allowed: bool
    subject: Annotated[str, msgspec.Meta(max_length=256)] = ""


class RuleDone(msgspec.Struct, frozen=True, kw_only=True):
    """The actions that a rule carried out."""

    rule: str
    subject: str
    actions: tuple[str, ...] = ()


class TestedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A firing in a test on a log, or the end of a firing (`over`). `at` is in seconds since 1970."""

    at: float
    rule: str
    subject: str
    have: str
    over: bool = False


class TestedRule(msgspec.Struct, frozen=True, kw_only=True):
    """The test of a rule on a log: the number of firings, and the actions that it would have taken. `flaps` counts
    firings for the same subject within an hour of the end of the last one. `open` firings had not ended at the end of
    the log.
    """

    name: str
    mode: str
    firings: int
    actions: dict[str, int]
    flaps: int
    open: int


class RulesEffect(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of rules on simulated jobs. The figures compare the same `jobs` without the rules (`live`) and with
    them (`shadow`); `level` is the confidence level of their intervals. `firings` counts firings by rule, with the
    rules in force. There are no figures if there were too few jobs.
    """

    jobs: int
    level: float
    firings: dict[str, int]
    figures: tuple["PairedFigure", ...] = ()


class RulesTest(msgspec.Struct, frozen=True, kw_only=True):
    """The test of rules on a log, from revision `first` to `last`, over `hours`. It has the number of evaluations and
    the first of all `changes`, in order. `conflicts` are subjects for which several rules were active at once.
    `missing` are signals that the log does not contain. `effect` is present if it was requested.
    """

    first: int
    last: int
    hours: float
    evaluations: int
    rules: tuple[TestedRule, ...]
    changes: tuple[TestedChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    effect: RulesEffect | None = None


class LoopResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated response of a control loop with the gains of this `label`. `error` is the mean error relative to
    the target in the second half of the `steps`, `within` the fraction of these within 10 % of the target, and
    `changes` counts changes of the knob. `at` (seconds), `measured` and `output` (fraction of the range) are the
    course.
    """

    label: str
    proportional: float
    integral: float
    steps: int
    error: float
    within: float
    changes: int
    at: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()
    output: tuple[float, ...] = ()


class TunedLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A control loop of a rule, tuned in the twin. Under a relay, its signal oscillates with this `period` in steps of
    `every` seconds; 0: it did not oscillate, and there are no tuned gains.
    """

    rule: str
    knob: str
    signal: str
    target: float
    every: float
    period: float
    responses: tuple[LoopResponse, ...] = ()

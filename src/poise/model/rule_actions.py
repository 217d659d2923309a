"""Actions of rules: their values as written, their compiled forms, and the settings that they change.

    cordon: true                                          # close the node
    change_priority: {to: high, class: train}             # of unfinished jobs
    adjust_memory_limit: {by: 50%, most: 64GiB, tenant: ann}
    adjust_memory_limit: {fit: 15%, most: 64GiB, class: train}
    scale_up_replicas: {service: chat, by: 2}
    mirror_traffic: {service: chat, to: chat-v2, share: 10%}
    promote: {policy: srtf, share: 25%, for: 2d}          # of the time, then always
    promote: {policy: srtf, nodes: 25%, for: 2d}          # for a part of the nodes, then for all
    notify: webhook:https://hooks.example.org/poise
    control: {knob: quota.gpu, of: ann, target: {fleet_use: 80%}, least: 4, most: 64}   # poise.model.control

A setting is a kind of thing and the one thing that is meant, such as the replicas of `chat`. Two settings overlap if
they are of the same kind and one of them means all things, or both mean the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from poise.errors import SpecError
from poise.model.control import POLICY, Control, compile_control
from poise.model.document import Findings, near
from poise.model.expressions import Scope
from poise.model.fields import LEAST_MEMORY, MAX_BYTES, Quantity, parse_or_raise
from poise.model.job_fields import PriorityName
from poise.model.jobs import Priority
from poise.model.notices import MOST_TARGETS, check_target
from poise.model.selection import Selection, parse_selection
from poise.model.served import service_in_full
from poise.model.spec import check_name
from poise.units import DAY, HOUR, MINUTE, parse_bytes, parse_duration, parse_share

MAX_REPLICAS = 1_000
"""Maximum number of replicas that a rule adds or removes."""

MAX_TRIAL = 90 * DAY
"""Maximum length of a trial of a policy."""

MAX_RAISE = 9_000
"""Maximum thousandths by which a rule raises a memory limit at once."""

UNAVAILABLE = {
    "adjust_gpu_memory_limit": "no driver can change the device memory of a running process",
}
"""Actions without an actuator, and the reason."""

ACTIONS: Mapping[str, Scope | Literal[""]] = {
    "cordon": "node",
    "migrate_task": "node",
    "set_policy": "fleet",
    "promote": "fleet",
    "control": "fleet",
    "change_priority": "",
    "adjust_memory_limit": "",
    "scale_up_replicas": "",
    "scale_down_replicas": "",
    "mirror_traffic": "",
    "notify": "",
}
"""Actions of rules, and the scope that each needs; empty: any."""


ADJUSTED: Mapping[str, str] = {"change_priority": "priority", "adjust_memory_limit": "shape.memory"}
"""Actions that change a field of jobs, and the path of the field in a unit."""

OF_SERVICES = frozenset({"scale_up_replicas", "scale_down_replicas", "mirror_traffic"})
"""Actions that gateways carry out, while the rule has fired."""

CORDON, REPLICAS = "the cordon of a node", "the replicas"
"""The kinds of the settings that belong to a node, and to a service."""


# --- as written ------------------------------------------------------------------------------------------------------


class PrioritySpec(msgspec.Struct, forbid_unknown_fields=True, rename={"kind": "class"}):
    """Which jobs get the priority class `to`: those with all of these properties."""

    to: PriorityName
    tenant: str = ""
    name: str = ""
    kind: str = ""


class MemorySpec(msgspec.Struct, forbid_unknown_fields=True, rename={"kind": "class"}):
    """The jobs that get another memory limit: set `to` an amount, raised `by` a share of the current limit up to
    `most`, or `fit` to the peaks of their class plus a share, from `least` to `most`.
    """

    to: Quantity = ""
    by: Quantity = ""
    fit: Quantity = ""
    least: Quantity = ""
    most: Quantity = ""
    tenant: str = ""
    name: str = ""
    kind: str = ""


class ReplicasSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The service, and the number of replicas that it gets or loses. Without a name, it is the one for which the rule
    has fired.
    """

    service: str = ""
    by: int = 1


class MirrorSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The service whose requests are copied, the service that gets the copies, and the share of requests."""

    service: str
    to: str
    share: Quantity = "10%"


class PromoteSpec(msgspec.Struct, forbid_unknown_fields=True, rename={"length": "for"}):
    """The policy in shadow to promote, and for how long it decides only for a part of the `nodes`; without `nodes`, for
    a share of the time, in turns of this length.
    """

    policy: str | dict[str, Any]
    nodes: Quantity = ""
    share: Quantity | msgspec.UnsetType = msgspec.UNSET
    length: Quantity = "1d"
    turn: Quantity | msgspec.UnsetType = msgspec.UNSET


# --- compiled --------------------------------------------------------------------------------------------------------


class WhichJobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Unfinished jobs with all of these properties; an empty one is any. `name` is a pattern such as `train-*`."""

    tenant: str = ""
    name: str = ""
    kind: str = ""


class Reprioritize(msgspec.Struct, frozen=True, kw_only=True):
    """Give `jobs` the priority class `to`."""

    jobs: WhichJobs
    to: Priority


class Relimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Set the memory limit of `jobs` `to` bytes (0: no), raise it `by` thousandths up to `most` bytes, or `fit` it to
    the peaks of their class plus that many thousandths, from `least` to `most` bytes.
    """

    jobs: WhichJobs
    to: int = 0
    by: int = 0
    fit: int = 0
    least: int = 0
    most: int = 0


class Rescale(msgspec.Struct, frozen=True, kw_only=True):
    """Add `by` replicas to what `service` would have; negative: remove. `service` is named as a class of its tenant; if
    it is empty, it is the one for which the rule has fired.
    """

    service: str
    by: int


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """Copy a `share` (thousandths) of the requests of `service` to the service `to`, and drop the answers."""

    service: str
    to: str
    share: int


class Promote(msgspec.Struct, frozen=True, kw_only=True):
    """Let a policy, by name or as the content of a file, decide in a trial of this `length`, and always after it. In
    the trial, it decides for the `nodes`, or, if they are None, in a `share` (thousandths) of the turns. Times in
    nanoseconds.
    """

    policy: str | dict[str, Any]
    share: int
    length: int
    turn: int
    nodes: Selection | None = None

    def is_turn(self, passed: int) -> bool:
        """Whether the policy decides in the turn at this time of the trial. Its turns are spread evenly."""
        number = passed // self.turn
        return (number + 1) * self.share // 1000 > number * self.share // 1000


class Action(NamedTuple):
    """An action of a rule. `value` is a compiled form, True, the targets of `notify`, or the policy of `set_policy`, by
    name or as the content of a file.
    """

    name: str
    value: Any = True


class Setting(NamedTuple):
    """A setting that an action changes: a kind of things, and `of` which one (empty: all of them)."""

    kind: str
    of: str = ""

    def __str__(self) -> str:
        return f"{self.kind} of {self.of}" if self.of else self.kind


def setting_of(action: Action) -> Setting | None:
    """Return the setting that an action changes; None for a notification."""
    match action.value:
        case Reprioritize():
            return Setting("the priority of jobs", _named(action.value.jobs))
        case Relimit():
            return Setting("the memory limit of jobs", _named(action.value.jobs))
        case Rescale():
            return Setting(REPLICAS, service_in_full(action.value.service) if action.value.service else "")
        case Mirror():
            return Setting("the mirrored requests", service_in_full(action.value.service))
        case Promote():
            return Setting("the policy")
        case Control(knob="replicas", of=of):
            return Setting(REPLICAS, service_in_full(of))
        case Control(knob=knob, of=of):
            return Setting("the policy" if knob.startswith(POLICY) else f"the {knob}", of)
    kinds = {"cordon": CORDON, "migrate_task": CORDON, "set_policy": "the policy"}
    return Setting(kinds[action.name]) if action.name in kinds else None


def sets_policy(action: Action) -> bool:
    """Return whether an action sets the policy, or a parameter of it."""
    return setting_of(action) == Setting("the policy")


def policy_of(action: Action) -> str | dict[str, Any] | None:
    """Return the policy that an action sets, by name or as the content of a file; None if it sets none."""
    if isinstance(action.value, Promote):
        return action.value.policy
    policy: str | dict[str, Any] | None = action.value if action.name == "set_policy" else None
    return policy


def _named(jobs: WhichJobs) -> str:
    """Return the one property by which jobs can be told apart for certain: their tenant."""
    return f"tenant {jobs.tenant}" if jobs.tenant else ""


# --- compiling -------------------------------------------------------------------------------------------------------


def compile_action(name: str, value: Any, field: str, every: int, found: Findings) -> Iterator[Action]:
    """Yield the compiled action of a rule that is evaluated `every` nanoseconds, or nothing after errors."""
    if name in UNAVAILABLE:
        what = f"Poise cannot do `{name}` here: {UNAVAILABLE[name]}"
        found.add(SpecError(what, field=field, need=", ".join(ACTIONS), have=name, hint="notify: true"))
    elif name not in ACTIONS:
        hint = near(name, ACTIONS) or "notify: true"
        found.add(SpecError("there is no such action", field=field, need=", ".join(ACTIONS), have=name, hint=hint))
    elif name in _READ or name == "control":
        made = _READ[name](value, field, found) if name in _READ else compile_control(value, field, every, found)
        if made is not None and not found.doubts(field):
            yield Action(name, made)
    elif value is not True:
        found.add(SpecError("this action takes no value", field=field, need="true", hint=f"{name}: true"))
    else:
        yield Action(name)


def _policy(value: Any, field: str, found: Findings) -> str | dict[str, Any] | None:
    if isinstance(value, str | dict) and value:
        return value
    hint = "set_policy: srtf"
    found.add(SpecError("a policy is missing", field=field, need="a name, or its fields", hint=hint))
    return None


def _promotion(value: Any, field: str, found: Findings) -> Promote | None:
    spec = found.convert(value, PromoteSpec, field)
    if spec is None or not _policy(spec.policy, f"{field}.policy", found):
        return None
    for name in ("share", "turn") if spec.nodes != "" else ():
        if getattr(spec, name) is not msgspec.UNSET:
            what, need = (
                f"with `nodes`, there are no turns, so `{name}` has no effect",
                "`nodes`, or `share` and `turn`",
            )
            found.add(SpecError(what, field=f"{field}.{name}", need=need, hint="{policy: srtf, nodes: 25%, for: 2d}"))
    nodes = found.get(None, parse_selection, spec.nodes, f"{field}.nodes") if spec.nodes != "" else None
    wanted = "25%" if spec.share is msgspec.UNSET else spec.share
    share = found.get(1, parse_or_raise, parse_share, wanted, f"{field}.share", 1000)
    length = found.get(DAY, parse_or_raise, parse_duration, spec.length, f"{field}.for", MAX_TRIAL)
    wanted = "1h" if spec.turn is msgspec.UNSET else spec.turn
    turn = found.get(HOUR, parse_or_raise, parse_duration, wanted, f"{field}.turn", MAX_TRIAL)
    for name, have, least in (("share", share, 1), ("turn", turn, MINUTE)):
        if have < least:
            need = "0.1% to 100%" if name == "share" else "at least 1m"
            found.add(SpecError(f"the {name} is too small", field=f"{field}.{name}", need=need, have=str(have)))
    return Promote(policy=spec.policy, share=share, length=length, turn=turn, nodes=nodes)


def _targets(value: Any, field: str, found: Findings) -> bool | tuple[str, ...] | None:
    if value is True:
        return True
    targets = [value] if isinstance(value, str) else value
    if not isinstance(targets, list) or not 1 <= len(targets) <= MOST_TARGETS:
        need = f"true, or 1 to {MOST_TARGETS} targets"
        hint = "notify: webhook:https://hooks.example.org/poise"
        found.add(SpecError("this is no target", field=field, need=need, hint=hint))
        return None
    for target in targets:
        found.get(None, check_target, str(target), field)
    return tuple(dict.fromkeys(str(target) for target in targets))


def _priority(value: Any, field: str, found: Findings) -> Reprioritize | None:
    spec = found.convert(value, PrioritySpec, field)
    jobs = _jobs(spec, field, found)
    return None if spec is None or jobs is None else Reprioritize(jobs=jobs, to=Priority[spec.to.upper()])


def _memory(value: Any, field: str, found: Findings) -> Relimit | None:
    spec = found.convert(value, MemorySpec, field)
    jobs = _jobs(spec, field, found)
    if spec is None or jobs is None:
        return None
    ways = [way for way in ("to", "by", "fit") if getattr(spec, way) != ""]
    if len(ways) != 1 or (spec.most != "" and ways == ["to"]) or (spec.least != "" and ways != ["fit"]):
        what, need = "the new limit is not clear", "`to`; or `by` with `most`; or `fit` with `most`"
        found.add(SpecError(what, field=field, need=need, hint="{by: 50%, most: 64GiB, class: train}"))
        return None
    [way] = ways
    if way == "to":
        return Relimit(jobs=jobs, to=_amount(spec.to, f"{field}.to", found))
    share = found.get(1, parse_or_raise, _parse_raise, getattr(spec, way), f"{field}.{way}", MAX_RAISE)
    if spec.most == "":
        found.add(SpecError("`by` and `fit` need a maximum", field=f"{field}.most", hint="most: 64GiB"))
        return None
    most = _amount(spec.most, f"{field}.most", found)
    if way == "by":
        return Relimit(jobs=jobs, by=share, most=most)
    least = _amount(spec.least, f"{field}.least", found) if spec.least != "" else LEAST_MEMORY
    if least > most:
        found.add(SpecError("`least` is larger than `most`", field=f"{field}.least", need=f"at most {spec.most}"))
    return Relimit(jobs=jobs, fit=share, least=least, most=most)


def _amount(value: Quantity, field: str, found: Findings) -> int:
    amount = found.get(LEAST_MEMORY, parse_or_raise, parse_bytes, value, field, MAX_BYTES)
    if amount < LEAST_MEMORY:
        found.add(SpecError("the amount is too small", field=field, need="at least 1MiB", have=str(amount)))
    return amount


def _parse_raise(value: Quantity) -> int:
    """Thousandths from `50%`, `300%` or `0.5`; above 0."""
    text = str(value).strip()
    number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < number < float("inf"):
        raise ValueError(f"a share above 0 such as `50%`, not `{text[:40]}`")
    return max(1, round(number * 1000))


def _replicas(sign: int) -> Any:
    def read(value: Any, field: str, found: Findings) -> Rescale | None:
        spec = found.convert(value, ReplicasSpec, field)
        if spec is None:
            return None
        if spec.service:
            _check_service(spec.service, f"{field}.service", found)
        if not 1 <= spec.by <= MAX_REPLICAS:
            need = f"1 to {MAX_REPLICAS}"
            found.add(SpecError("the number is out of range", field=f"{field}.by", need=need, have=str(spec.by)))
        return Rescale(service=spec.service, by=sign * spec.by)

    return read


def _mirror(value: Any, field: str, found: Findings) -> Mirror | None:
    spec = found.convert(value, MirrorSpec, field)
    if spec is None:
        return None
    _check_service(spec.service, f"{field}.service", found)
    found.get(None, check_name, spec.to, f"{field}.to")
    share = found.get(1, parse_or_raise, parse_share, spec.share, f"{field}.share", 1000)
    if not share:
        found.add(SpecError("the share must be above 0", field=f"{field}.share", need="0.1% to 100%", have="0"))
    if spec.to == spec.service.rpartition(":")[2]:
        what, hint = "a service does not mirror its own requests", f"to: {spec.to}-v2"
        found.add(SpecError(what, field=f"{field}.to", need="another service", have=spec.to, hint=hint))
    return Mirror(service=spec.service, to=spec.to, share=share)


def _check_service(service: str, field: str, found: Findings) -> None:
    """Check the name of a service, after that of its tenant: `chat`, `ann:chat`."""
    tenant, colon, name = service.rpartition(":")
    found.get(None, check_name, name, field)
    if colon:
        found.get(None, check_name, tenant, field)


def _jobs(spec: PrioritySpec | MemorySpec | None, field: str, found: Findings) -> WhichJobs | None:
    if spec is None:
        return None
    if not (spec.tenant or spec.name or spec.kind):
        what, need = "the jobs are not named", "`class`, `name` or `tenant`"
        found.add(SpecError(what, field=field, need=need, hint="class: train"))
        return None
    if spec.tenant:
        found.get(None, check_name, spec.tenant, f"{field}.tenant")
    return WhichJobs(tenant=spec.tenant, name=spec.name, kind=spec.kind)


_READ: Mapping[str, Any] = {
    "set_policy": _policy,
    "promote": _promotion,
    "notify": _targets,
    "change_priority": _priority,
    "adjust_memory_limit": _memory,
    "scale_up_replicas": _replicas(1),
    "scale_down_replicas": _replicas(-1),
    "mirror_traffic": _mirror,
}

__all__ = [
    "ACTIONS",
    "ADJUSTED",
    "CORDON",
    "OF_SERVICES",
    "REPLICAS",
    "UNAVAILABLE",
    "Action",
    "Control",
    "Mirror",
    "Promote",
    "Relimit",
    "Reprioritize",
    "Rescale",
    "Setting",
    "WhichJobs",
    "compile_action",
    "policy_of",
    "sets_policy",
    "setting_of",
]

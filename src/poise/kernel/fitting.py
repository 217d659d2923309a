"""Check whether any node could ever hold a unit; if none could, name the closest node and a request that would fit."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from poise.errors import SpecError
from poise.model.decisions import Reason
from poise.model.document import Findings, some
from poise.model.fleet import DeviceModel, Fleet, model_of
from poise.model.jobs import Unit
from poise.model.quotas import Quota, asked
from poise.model.resources import ALLOCATED, CONTAINERS, ROOTLESS, WHOLE, Device, Node, Shape, contained
from poise.policy.feasible import can_do, capacity_when_empty, never, shortfall
from poise.units import format_cpu, type_bytes, type_rate

FEW = 12
"""Maximum number of known names in an error about an unknown one."""

LIKELY = 256
"""Maximum number of node names to search for a close match."""


def check_all(units: Sequence[Unit], fleet: Fleet, tenant: str, quota: Quota | None) -> None:
    """Raise SpecError for all units that no node here could ever run, or that exceed the whole quota of their tenant.
    Similar units are checked once.
    """
    found = Findings()
    alike: set[tuple[object, ...]] = set()
    is_graph = any(_task_of(unit) != "main" for unit in units)
    for unit in units:
        asks = (_task_of(unit), unit.shape, unit.variants, unit.least, len(unit.tasks))
        if asks in alike:
            continue
        alike.add(asks)
        field = f"tasks.{_task_of(unit)}." if is_graph else ""
        try:
            _check_fits(fleet, unit)
            if quota is not None:
                _check_quota(tenant, quota, unit)
        except SpecError as error:
            error.record = msgspec.structs.replace(error.record, field=f"{field}{error.record.field}")
            found.add(error)
    found.check()


def nowhere(fleet: Fleet, unit: Unit) -> list[Reason]:
    """Return a reason if no node here could ever run the unit, as a submission would be refused now; else nothing."""
    try:
        _check_fits(fleet, unit)
    except SpecError as error:
        return [Reason(code="NOWHERE", have=error.record.message, fixable="never")]
    return []


def strangers(fleet: Fleet, shapes: Iterable[Shape]) -> list[Reason]:
    """Return reasons for names in `node` and `exclude_node` that no node has: misspelt, or of nodes that have not
    joined yet.
    """
    found: dict[tuple[str, str], None] = {}
    for where in dict.fromkeys(shape.where for shape in shapes):
        found |= {("ALLOWS_UNKNOWN", name): None for name in where.nodes if name not in fleet.rows}
        found |= {("EXCLUDES_UNKNOWN", name): None for name in where.without if name not in fleet.rows}
    return [
        Reason(code=code, subject=some(names, FEW), have=_there(fleet, names))
        for code in dict.fromkeys(code for code, _ in found)
        if (names := [name for of, name in found if of == code])
    ]


def _there(fleet: Fleet, names: Sequence[str]) -> str:
    """Return the known nodes as text, with the name that was probably meant."""
    if not len(fleet):
        return "no node has joined yet"
    close = [one for name in names[:FEW] for one in difflib.get_close_matches(name, fleet.names[:LIKELY], n=1)]
    meant = f"did you mean `{close[0]}`? " if close else ""
    return f"{meant}nodes are {some([*fleet.names], FEW)}"


def _task_of(unit: Unit) -> str:
    """Return the task of the job file from which the unit was made."""
    return unit.name.partition("[")[0].removesuffix(".merge")


def _check_fits(fleet: Fleet, unit: Unit) -> None:
    """Raise SpecError for a unit that no node here could ever run, with the closest node.

    An empty fleet may get any node. So may one whose nodes other systems allocate on request.
    """
    if not len(fleet):
        return
    wanted = unit.least or len(unit.tasks)
    room = max(capacity_when_empty(fleet, unit.shape_of(of)) for of in range(len(unit.variants) + 1))
    if room >= wanted or fleet.grows or any(ALLOCATED in node.labels for node in fleet.nodes):
        return
    if room and (where := unit.shape.where).groups:
        label = where.spread or where.together
        values = {value: None for node in fleet.nodes if unit.shape.where.admits(node) and (value := node.label(label))}
        raise SpecError(
            f"gang `{unit.name}` on {where.describe()} can never start whole",
            code="E110",
            field=f"resources.{'spread' if where.spread else 'together'}",
            need=f"{wanted} tasks of {unit.shape.describe()} at once",
            have=f"room for {room} (values of `{label}`: {some([*values], FEW)})",
            hint=f"workers: {room}",
        )
    if room:
        raise SpecError(
            f"gang `{unit.name}` can never start whole",
            code="E110",
            field="workers",
            need=f"{wanted} tasks of {unit.shape.describe()} at once",
            have=f"room for {room} on all nodes together",
            hint=f"workers: {room}",
        )
    admitted = [row for row, node in enumerate(fleet.nodes) if unit.shape.where.admits(node)]
    if not admitted:
        raise _nowhere(fleet.nodes, unit)
    if unit.shape.gpus:
        _check_known(fleet.models, unit)
    # one node of each kind: the others lack the same
    kinds = [fleet.nodes[row] for row in {int(fleet.kind[row]): row for row in reversed(admitted)}.values()]
    node = min(kinds, key=lambda node: (shortfall(node, unit.shape), not _has_such(node, unit.shape)))
    lacks = "; ".join(reason.sentence() for reason in never(node, unit.shape))
    raise SpecError(
        f"`{unit.name}` requests more than any node has",
        code="E110",
        field="resources",
        need=unit.shape.describe(),
        have=f"closest is {lacks}",
        hint=f"`poise nodes` shows the resources; {_fitting_hint(node, unit.shape)}",
    )


def _check_quota(tenant: str, quota: Quota, unit: Unit) -> None:
    """Raise SpecError for a unit that exceeds the whole quota of its tenant, whatever else of the tenant runs."""
    wanted = unit.least or len(unit.tasks)
    needs = [asked(unit.shape_of(of), wanted) for of in range(len(unit.variants) + 1)]
    if not any(quota.most.holds(need) for need in needs):
        reason = quota.most.refusal(tenant, needs[0])
        raise SpecError(
            f"`{unit.name}` requests more than the quota of {tenant}",
            code="E110",
            field="resources",
            need=reason.need,
            have=f"a quota of {reason.have}",
            hint="request less, or ask for a higher quota: `poise quota` lists all",
        )


def _check_known(models: Iterable[DeviceModel], unit: Unit) -> None:
    """Raise SpecError for a kind or a model of device that no node has, with a suggestion if possible."""
    wants = unit.shape.wants
    kinds: dict[str, dict[str, None]] = {}
    for model in models:
        if model.kind != "cpu":
            kinds.setdefault(model.kind, {}).update({model.name: None} if model.name else {})
    if not kinds:
        return
    elsewhere = {name: kind for kind, names in kinds.items() for name in names if name in wants.models}
    if elsewhere and wants.kind not in elsewhere.values():
        name, kind = next(iter(elsewhere.items()))
        raise _unknown(
            unit, "gpu_kind", f"no {name} here is a device of kind `{wants.kind}`", kind,
            f"`gpu_kind: {kind}`, or `--gpu-kind {kind}`",
        )  # fmt: skip
    if wants.kind not in kinds:
        message = f"no node has a device of kind `{wants.kind}`"
        raise _unknown(unit, "gpu_kind", message, ", ".join(kinds), _meant("gpu_kind", [wants.kind], kinds))
    here = kinds[wants.kind]
    if wants.models and here and not here.keys() & set(wants.models):
        names = " or ".join(f"`{name}`" for name in wants.models)
        more = ", …" if len(here) > FEW else ""
        raise _unknown(
            unit, "gpu_model", f"no node has a device of model {names}", ", ".join(list(here)[:FEW]) + more,
            _meant("gpu_model", wants.models, here),
        )  # fmt: skip


def _nowhere(nodes: Sequence[Node], unit: Unit) -> SpecError:
    """Return the error for a unit that no node admits: an unknown name or label, else the whole request."""
    where = unit.shape.where
    message, field, have, hint = f"`{unit.name}` may run on no node", "resources", "", "`poise nodes -o wide` shows all"
    names = {node.name: None for node in nodes}
    if where.account and not any(node.runs_as(where.account) for node in nodes):
        others = [node.name for node in nodes if node.accounts]
        raise SpecError(
            f"`{unit.name}`: no node runs commands as the account `{where.account}`",
            code="E110",
            field="account",
            need="an agent that runs as root, on a machine that has the account",
            have=f"other accounts only: {some(others, FEW)}" if others else "no agent is root",
            hint="`poise doctor` on the node, `poise whoami` here",
        )
    if where.nodes and not names.keys() & set(where.nodes):
        named = " or ".join(f"`{name}`" for name in where.nodes)
        message, field = f"`{unit.name}`: no node has the name {named}", "node"
        have, hint = some([*names], FEW), _meant("node", where.nodes, names)
    for label, values in where.labels:
        there = {node.label(label): None for node in nodes if node.label(label)}
        if not there.keys() & set(values):
            message, field = f"`{unit.name}`: no node has the label {label}={' or '.join(values)}", f"label.{label}"
            have = f"{label}: {some([*there], FEW)}" if there else f"no node has a label `{label}`"
            hint = _CONTAINED.get(label, "`labels:` in `devices.yaml` of a machine, or in a fleet file, gives it one")
            if there:
                one = (difflib.get_close_matches(values[0], there, n=1) or [*there])[0]
                hint = f"`--label {label}={one}`; `poise nodes -o wide` shows all"
    for name in ("spread", "together"):
        label = getattr(where, name)
        if label and not any(node.label(label) for node in nodes):
            message, field, have = f"`{unit.name}`: no node has a label `{label}`", name, ""
            hint = f"`--{name} node`; `poise nodes -o wide` shows all labels"
    if field == "resources" and (out := [name for name in names if name in where.without]):
        without = msgspec.structs.replace(where, without=())
        if any(without.admits(node) for node in nodes):
            message, field = f"`{unit.name}`: every node that it could run on is excluded", "exclude_node"
            have, hint = some(out, FEW), "exclude fewer nodes; `poise nodes` lists all"
    at = "resources" if field == "resources" else f"resources.{field}"
    return SpecError(message, code="E110", field=at, need=where.describe(), have=have, hint=hint)


_CONTAINED = {
    next(iter(CONTAINERS)): "install podman on a node; it then has the label",
    contained(
        "gpu"
    ): "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` on a node with podman and NVIDIA devices",
    ROOTLESS: "let users create namespaces on a node with podman and a root agent: `sysctl user.max_user_namespaces`",
    contained("npu"): "install podman on a node with the Ascend driver; it then has the label",
}
"""Hints for labels that a node has by itself."""


def _unknown(unit: Unit, field: str, message: str, have: str, hint: str) -> SpecError:
    need = unit.shape.describe()
    return SpecError(
        f"`{unit.name}`: {message}", code="E110", field=f"resources.{field}", need=need, have=have, hint=hint
    )


def _meant(field: str, given: Iterable[str], known: Mapping[str, object]) -> str:
    """Return a suggestion: a close match, else an existing name."""
    spelled = {name.lower(): name for name in known}
    close = [spelled[one] for name in given for one in difflib.get_close_matches(name.lower(), spelled, n=1)]
    one = close[0] if close else next(iter(known))
    said = f"did you mean `{one}`?" if close else "`poise nodes` shows the resources:"
    return f"{said} `{field}: {one}`, or `--{field.replace('_', '-')} {one}`"


def _has_such(node: Node, shape: Shape) -> bool:
    """Return whether the node has a device of the kind and model, even if it is too small."""
    return any(can_do(model_of(device), shape.wants) for device in node.devices)


def _fitting_hint(node: Node, shape: Shape) -> str:
    """Return the request reduced to the resources of the node."""
    asks = [f"--cpu {format_cpu(min(shape.cpu, node.cpu))}"]
    if shape.memory:
        asks.append(f"--memory {type_bytes(min(shape.memory, node.memory))}")
    if shape.network:
        asks.append(f"--network {type_rate(min(shape.network, node.network or shape.network))}")
    if shape.gpus and node.devices:
        right = [device for device in node.devices if can_do(model_of(device), shape.wants)] or list(node.devices)
        fits = [device for device in right if device.memory >= shape.gpu_memory] or [max(right, key=_memory)]
        asks.append(f"--gpu {min(shape.gpus, len(fits))}")
        shared = max(device.share_cap for device in right)
        if WHOLE > shape.share > shared > 0:
            asks.append(f"--gpu-share {shared / WHOLE:g}")
        if shape.gpu_memory:
            least = min(device.memory for device in fits)
            asks.append(f"--gpu-memory {type_bytes(min(shape.gpu_memory, least))}")
    without = " without `--gpu`" if shape.gpus and not node.devices else ""
    if without and shape.cpu <= node.cpu and shape.memory <= node.memory and shape.network <= node.network:
        return f"leave out `--gpu`: the rest would fit on {node.name}"
    return f"`{' '.join(asks)}`{without} would fit on {node.name}"


def _memory(device: Device) -> int:
    return device.memory

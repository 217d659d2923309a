"""Changes to a submitted job: the changeable fields of the job file, and where a unit stores them."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.document import near
from poise.model.fields import declared
from poise.model.job_fields import JobSpec, ResourcesSpec
from poise.model.jobs import Array, Unit

CHANGEABLE: Mapping[str, tuple[str, ...]] = {
    "priority": ("priority",),
    "deadline": ("deadline", "if_late"),
    "expect": ("expect",),
    "time-limit": ("time_limit",),
    "weight": ("weight",),
    "preemptible": ("preemptible",),
    "retry": ("retry",),
    "grace": ("grace",),
    "checkpoint": ("checkpoint", "restore"),
    "resources.cpu": ("shape.cpu",),
    "resources.memory": ("shape.memory",),
    "resources.gpu": ("shape.gpus",),
    "resources.gpu_memory": ("shape.gpu_memory",),
    "resources.gpu_share": ("shape.share",),
    "resources.network": ("shape.network",),
    "resources.gpu_kind": ("shape.wants.kind",),
    "resources.gpu_model": ("shape.wants.models",),
    "resources.precision": ("shape.wants.precision",),
    "resources.node": ("shape.where.nodes",),
    "resources.exclude_node": ("shape.where.without",),
    "resources.label": ("shape.where.labels", "shape.where.without_labels"),
}
"""Fields of a job file, with the attributes of a unit that they determine."""

HELD = "shape."
"""Prefix of the paths of resources that a running attempt holds. It keeps them."""

AT_START = ("grace",)
"""Paths that a node receives when an attempt starts. Later changes do not affect the attempt."""

LIVE = "time_limit"
"""The path whose changes are sent to the node of a running attempt."""

MEMORY = "shape.memory"
"""The path whose increase a running attempt gets at once, if there is room and its node can do it."""


def fields_in(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that a part of a job file sets, such as `priority`, `resources.cpu`. Raises `SpecError` for a
    field that cannot be changed, and if there is none.
    """
    inner = document.get("resources", {})
    own = [f"resources.{name}" for name in inner] if isinstance(inner, Mapping) else ["resources"]
    fields = [name for name in document if name != "resources"] + own
    known = ", ".join(name.removeprefix("resources.") for name in CHANGEABLE)
    if not fields:
        raise SpecError("no change is given", code="E102", need=known, hint="poise set JOB priority=high")
    for field in fields:
        if field not in CHANGEABLE:
            name = field.removeprefix("resources.")[:80]
            known_here = name in declared(JobSpec) or name in declared(ResourcesSpec)
            hint = near(name, [one.removeprefix("resources.") for one in CHANGEABLE])
            what = (
                f"`{name}` cannot be changed once a job is submitted" if known_here else f"there is no field `{name}`"
            )
            raise SpecError(what, code="E105", field=field[:80], need=known, hint=hint or "submit the job anew")
    return tuple(fields)


def as_job(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job file with these fields, for compilation. Fields about devices get one device if no number is set."""
    inner = document.get("resources")
    devices = {"resources": {"gpu": 1, **inner}} if isinstance(inner, Mapping) else {}
    return {"run": "true", **document, **devices}


def changed(unit: Unit, like: Unit, paths: Collection[str], *, at_rest: bool) -> Unit:
    """Return the unit with the values of `like` at these paths. A unit that is not `at_rest` keeps its resources."""
    made = unit
    for path in paths:
        if at_rest or not path.startswith(HELD):
            made = _with(made, like, path.split("."))
    return made


def each_changed(array: Array, like: Unit, paths: Collection[str]) -> Array:
    """Return the array with the values of `like` at these paths of its parts and of its merge."""
    made = msgspec.structs.replace(array, like=changed(array.like, like, paths, at_rest=True))
    if made.merge is None:
        return made
    return msgspec.structs.replace(made, merge=changed(made.merge, like, paths, at_rest=True))


def _with(record: Any, like: Any, path: list[str]) -> Any:
    name, *inner = path
    value = getattr(like, name)
    return msgspec.structs.replace(record, **{name: _with(getattr(record, name), value, inner) if inner else value})

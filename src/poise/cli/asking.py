"""Flags by which a command says what it needs, shared by `run`, `submit` and `plan`."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from poise.cli.render import say
from poise.errors import ErrorRecord, PoiseError, SpecError
from poise.model.sweep import PREFIX

Function = TypeVar("Function", bound=Callable[..., Any])

_NEEDS = [
    click.option("-g", "--gpu", metavar="N", help="Whole devices for each task."),
    click.option("--gpu-memory", metavar="BYTES", help="Memory that each device must have, e.g. 12GiB."),
    click.option("--gpu-share", metavar="PART", help="The part of each device's compute, e.g. 0.5."),
    click.option("--gpu-kind", metavar="KIND", help="Devices of this kind: gpu, npu, or as the fleet calls it."),
    click.option("--gpu-model", metavar="MODEL", multiple=True, help="Only devices of this model. Repeatable."),
    click.option("--backend", metavar="NAME", help="What the command was built for: cuda, rocm, cann."),
    click.option(
        "--precision", metavar="NAME", help="What it computes in, e.g. fp16, or wider where a device lacks it."
    ),
    click.option("--network", metavar="RATE", help="Network bandwidth for each task, e.g. 10Gbit."),
    click.option("--cpu", metavar="N", help="CPUs for each task, e.g. 4, 0.5 or 500m. [default: 1]"),
    click.option("--memory", metavar="BYTES", help="Memory for each task, reserved and limited, e.g. 8GiB."),
    click.option("--priority", metavar="CLASS", help="urgent, high, medium or low."),
    click.option(
        "--env", metavar="NAME[=VALUE]", multiple=True, help="Set or pass on an environment variable. Repeatable."
    ),
]
"""What a process needs."""

_FLAGS = [
    *_NEEDS[:-1],
    click.option("--begin", metavar="TIME", help="Not before: 2h from now, or 2026-12-01T02:00:00Z."),
    click.option("--deadline", metavar="TIME", help="When it must be done: 30m, or 2026-12-01T12:00:00Z."),
    click.option(
        "--if-late",
        metavar="WORD",
        help="When the deadline cannot be met: refuse the job, run it all the same, or cancel it. [default: run]",
    ),
    click.option("--expect", metavar="TIME", help="How long it should run, until history knows better."),
    click.option(
        "--after", metavar="JOB", multiple=True, help="Start after this job (id or name) is done. Repeatable."
    ),
    click.option("--class", "kind", metavar="NAME", help="Work of one class shares what is learned of its run times."),
    click.option("--workers", metavar="N", help="A gang of N tasks that start together; 2..8: elastic."),
    click.option("--parts", metavar="N", help="Cut by data: N tasks, each told its POISE_PART of POISE_PARTS."),
    click.option(
        "--sweep",
        metavar="NAME=VALUES",
        multiple=True,
        help="A task for each of these values, `0.1,0.01` or `1..5`, which stand for {NAME} in the command. "
        "Repeated: for each combination.",
    ),
    click.option("--at-most", metavar="N", help="Of the parts, or of the tasks of a sweep, so many run at once."),
    click.option("--checkpoint", metavar="TIME", help="How often the work saves itself: what yielding would cost."),
    click.option("--no-preempt", is_flag=True, help="Never ask it to yield."),
    click.option("--weight", metavar="N", help="Business weight, for policies that look at it. [default: 1]"),
    click.option("--name", metavar="NAME", help="A name, unique among unfinished jobs."),
    click.option("--retries", metavar="N", help="How often to try again."),
    click.option("--hang", metavar="TIME", help="It has hung when it has not touched $POISE_PROGRESS for so long."),
    click.option("--lease", metavar="CLASS", help="fenced, or exclusive: no two copies at once, even if cut off."),
    click.option("--grace", metavar="TIME", help="Between SIGTERM and SIGKILL when it is stopped. [default: 10s]"),
    _NEEDS[-1],
]


def asking(function: Function) -> Function:
    """Adds the flags; they arrive as one keyword each."""
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function


def needing(function: Function) -> Function:
    """Adds the flags that say what a process needs, without those of jobs."""
    for flag in reversed(_NEEDS):
        function = flag(function)
    return function


SCRIPTS = (".sh", ".bash", ".py")


def is_script(name: str) -> bool:
    """Whether it names a script, which is read for directives: by its ending, and only a file that is there."""
    return name.endswith(SCRIPTS) and Path(name).is_file()


def needed(flags: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    """The fields that the flags of `needing` set. Quantities stay as written: one place reads them, with one error."""
    spec: dict[str, Any] = {}
    resources: dict[str, Any] = {
        field: _number(flags[field])
        for field in ("gpu", "gpu_memory", "gpu_share", "backend", "precision", "network", "cpu", "memory")
        if flags[field] is not None
    }
    if flags["gpu_kind"] is not None:
        resources["gpu_kind"] = flags["gpu_kind"]
    if flags["gpu_model"]:
        resources["gpu_model"] = list(flags["gpu_model"])
    if resources:
        spec["resources"] = resources
    if flags["priority"] is not None:
        spec["priority"] = flags["priority"]
    if flags["env"]:
        pairs = [one.partition("=") for one in flags["env"]]
        spec["env"] = {name: value if equals else environ.get(name) for name, equals, value in pairs}
    return spec


def asked(flags: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    """The fields of a job that the flags set."""
    spec = needed(flags, environ)
    if flags["if_late"] is not None:  # of a deadline that this flag does not give, the file or script may tell the time
        spec["deadline"] = {"if-late": flags["if_late"]}
        if flags["deadline"] is not None:
            spec["deadline"] = {"by": flags["deadline"]} | spec["deadline"]
    elif flags["deadline"] is not None:
        spec["deadline"] = flags["deadline"]
    for field in ("begin", "expect", "checkpoint", "name", "hang", "lease", "grace"):
        if flags[field] is not None:
            spec[field] = flags[field]
    for field in ("workers", "parts", "at_most", "weight"):
        if flags[field] is not None:
            spec[field] = _number(flags[field])
    if flags["sweep"]:
        spec["sweep"] = _sweep(flags["sweep"])
    if flags["kind"] is not None:
        spec["class"] = flags["kind"]
    if flags["no_preempt"]:
        spec["preemptible"] = False
    if flags["retries"] is not None:
        spec["retry"] = {"limit": _number(flags["retries"]), "when": ["lost", "killed", "hung", "failed", "signal"]}
    if flags["after"]:
        spec["after"] = list(flags["after"])
    return spec


_A_FIELD = re.compile(r"([\w-]+): ([^\s{}\[\]]+)")


@contextmanager
def told_as_flags(flags: dict[str, Any]) -> Iterator[None]:
    """Errors about fields that these flags set name the flag (`--memory` for `resources.memory`), and hint at one."""
    try:
        yield
    except PoiseError as error:
        first, *others = [_as_flag(one, flags) for one in error.record.all()]
        error.record = msgspec.structs.replace(first, others=tuple(others))
        raise


def _as_flag(record: ErrorRecord, flags: dict[str, Any]) -> ErrorRecord:
    name = _flag_of(record.field)
    given = flags.get(name) or (name == "deadline" and flags.get("if_late"))
    if record.at or not given:
        return msgspec.structs.replace(record, others=())
    match = _A_FIELD.fullmatch(record.hint)
    hint = f"{_typed(_flag_of(match[1]))} {match[2]}" if match and _flag_of(match[1]) in flags else record.hint
    if name == "retries":
        hint = "--retries 3"
    return msgspec.structs.replace(record, field=_typed(name), hint=hint, others=())


def _flag_of(field: str) -> str:
    """The keyword of the flag that sets a field."""
    if field.removeprefix("deadline.") == "if-late":
        return "if_late"
    name = re.split(r"[.\[]", field.removeprefix("resources."))[0]
    return {"retry": "retries", "class": "kind", "by": "deadline"}.get(name, name)


def _typed(name: str) -> str:
    return "--class" if name == "kind" else f"--{name.replace('_', '-')}"


def note_unused(spec: dict[str, Any]) -> None:
    """Tell where the values of a sweep are, if the command names none of them."""
    names = spec.get("sweep")
    texts = [*spec["run"], *map(str, spec.get("env", {}).values())]
    if names and not any(f"{{{name}}}" in text or PREFIX in text for name in names for text in texts):
        name = next(iter(names))
        say(f"poise: nothing in the command is `{{{name}}}`; each task finds its value in {PREFIX}{name.upper()}")


def merged(spec: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A job with the fields of `own` in place of its own; resources, variables and what is said of the deadline are
    replaced one by one.
    """
    both = {
        name: spec[name] | own[name]
        for name in ("env", "resources")
        if isinstance(spec.get(name), dict) and isinstance(own.get(name), dict)
    }
    if spec.get("deadline") is not None and own.get("deadline") is not None:
        both["deadline"] = _of_deadline(spec["deadline"]) | _of_deadline(own["deadline"])
    return spec | own | both


def _of_deadline(said: Any) -> dict[str, Any]:
    """`30m` as a mapping."""
    return said if isinstance(said, dict) else {"by": said}


def _sweep(given: tuple[str, ...]) -> dict[str, Any]:
    """`lr=0.1,0.01` is a list, `seed=1..5` a range."""
    made: dict[str, Any] = {}
    for one in given:
        name, equals, values = one.partition("=")
        words = values.split(",")
        if not equals or not all(words) or name in made or (len(words) > 1 and any(".." in word for word in words)):
            what = "a name is swept twice" if name in made else "the values of a sweep cannot be read"
            need = "NAME=0.1,0.01 or NAME=1..5"
            raise SpecError(what, field="--sweep", need=need, have=one, hint="--sweep lr=0.1,0.01 --sweep seed=1..5")
        made[name] = values if ".." in values else words
    return made


def _number(text: str) -> int | float | str:
    """Numbers as numbers, everything else as written."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

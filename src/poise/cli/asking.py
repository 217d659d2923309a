"""Flags by which a command says what it needs, shared by `run` and `submit`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

_FLAGS = [
    click.option("-g", "--gpu", metavar="N", help="Whole devices for each task."),
    click.option("--gpu-memory", metavar="BYTES", help="Memory that each device must have, e.g. 12GiB."),
    click.option("--cpu", metavar="N", help="CPUs for each task, e.g. 4, 0.5 or 500m. [default: 1]"),
    click.option("--memory", metavar="BYTES", help="Memory for each task, reserved and limited, e.g. 8GiB."),
    click.option("--priority", metavar="CLASS", help="urgent, high, medium or low."),
    click.option("--deadline", metavar="TIME", help="When it must be done: 30m, or 2026-12-01T12:00:00Z."),
    click.option("--expect", metavar="TIME", help="How long it should run, until history knows better."),
    click.option(
        "--after", metavar="JOB", multiple=True, help="Start after this job (id or name) is done. Repeatable."
    ),
    click.option("--workers", metavar="N", help="A gang of N tasks that start together."),
    click.option("--name", metavar="NAME", help="A name, unique among unfinished jobs."),
    click.option("--retries", metavar="N", help="How often to try again."),
    click.option(
        "--env", metavar="NAME[=VALUE]", multiple=True, help="Set or pass on an environment variable. Repeatable."
    ),
]


def asking(function: Function) -> Function:
    """Adds the flags; they arrive as one keyword each."""
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function


def asked(flags: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    """The fields of a job that the flags set. Quantities stay as written: one place reads them, with one error."""
    spec: dict[str, Any] = {}
    resources = {
        field: _number(flags[field]) for field in ("gpu", "gpu_memory", "cpu", "memory") if flags[field] is not None
    }
    if resources:
        spec["resources"] = resources
    for field in ("priority", "deadline", "expect", "name"):
        if flags[field] is not None:
            spec[field] = flags[field]
    if flags["workers"] is not None:
        spec["workers"] = _number(flags["workers"])
    if flags["retries"] is not None:
        spec["retry"] = {"limit": _number(flags["retries"]), "when": ["lost", "killed", "failed", "signal"]}
    if flags["after"]:
        spec["after"] = list(flags["after"])
    if flags["env"]:
        pairs = [one.partition("=") for one in flags["env"]]
        spec["env"] = {name: value if equals else environ.get(name) for name, equals, value in pairs}
    return spec


def _number(text: str) -> int | float | str:
    """Whole numbers as numbers, everything else as written."""
    try:
        return int(text)
    except ValueError:
        return text

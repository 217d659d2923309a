"""Submit one job to Slurm unchanged, for `poise submit --via slurm`. Slurm runs it, and Poise stores nothing.

Only fields that are set become options of `sbatch`, so the `#SBATCH` lines of a script apply to the others. A field
without an exactly equivalent option of `sbatch` is refused.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from poise.errors import ErrorRecord, SpecError, together
from poise.model.jobs import Unit
from poise.model.spec import Compiled
from poise.ports import Handed
from poise.units import MINUTE, SECOND
from poise_slurm import commands

MIB = 2**20

_START = re.compile(r"start at (\S+) using (\d+) processors on nodes (\S+) in partition (\S+)")
_ID = re.compile(r"[0-9]+(?:_[0-9]+)?")

_NO_OPTION = ("kind", "run", "folder", "env", "expect", "class")
"""Fields that are part of the script, and fields that describe the command and request nothing."""

_UNFIT = {"secrets": "other users can read the scripts of Slurm"}

_HINTS = {
    "secrets": "use a file that only you can read",
    "priority": "`#SBATCH --qos=NAME` in a script",
    "resources.label": "`#SBATCH --constraint=FEATURE` in a script",
    "resources.gpu_model": "`#SBATCH --gres=gpu:MODEL:1` in a script",
    "notify": "`#SBATCH --mail-type=END` in a script",
}
_ON = "submit it without `--via`; `poise up --on slurm` runs it on the same cluster"


def hand_over(spec: Mapping[str, Any], compiled: Compiled, text: str) -> Handed:
    """Submit a job of one task, given as written (`spec`) and compiled, with the `#SBATCH` lines of its script. Raises
    `SpecError` for what a single Slurm job cannot be, and `Fault` with the message of `sbatch`.
    """
    unit, *others = compiled.units
    if others or len(unit.tasks) != 1 or unit.tasks[0].parts:
        have = f"{sum(len(one.tasks) for one in compiled.units)} tasks"
        raise SpecError("one command can be handed to Slurm", field="--via", have=have, hint="`poise up --on slurm`")
    options = _options(spec, compiled, unit)
    task = unit.tasks[0]
    variables = [f"export {name}={shlex.quote(value)}" for name, value in {**compiled.env, **task.env}.items()]
    script = "\n".join(["#!/bin/sh", *_lines(text), *variables, f"exec {shlex.join(task.argv)}", ""])
    return _submit(script, options)


def _lines(text: str) -> list[str]:
    """Return the `#SBATCH` lines up to the first line of code, as `sbatch` reads them."""
    head = takewhile(lambda line: not line.strip() or line.startswith("#"), text.splitlines())
    return [line for line in head if line.startswith("#SBATCH")]


def _options(spec: Mapping[str, Any], compiled: Compiled, unit: Unit) -> list[str]:
    """Return the `sbatch` options for all fields that are set. Raises `SpecError` with all fields that have none."""
    elsewhere = compiled.folder and Path(compiled.folder) != Path.cwd()
    options = [f"--chdir={compiled.folder}"] if elsewhere else []
    dependencies: list[str] = []
    refused: list[ErrorRecord] = []
    for field in _set_fields(spec):
        try:
            if field in _CONDITIONS:
                dependencies.append(_condition(field, spec[field]))
            elif field in _OPTIONS:
                options += _OPTIONS[field](compiled, unit)
            elif field not in _NO_OPTION:
                what = _UNFIT.get(field, "Slurm has no option for this")
                raise SpecError(what, field=field, hint=_HINTS.get(field, _ON))
        except SpecError as error:
            refused.append(error.record)
    if refused:
        raise together(refused)
    if dependencies:
        options += [f"--dependency={','.join(dependencies)}", "--kill-on-invalid-dep=yes"]
    return options


def _set_fields(spec: Mapping[str, Any]) -> Iterator[str]:
    for name, value in spec.items():
        if name == "resources":
            yield from (f"resources.{inner}" for inner, of in value.items() if _is_set(of))
        elif value is False if name == "preemptible" else _is_set(value):
            yield name


def _is_set(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


# --- equivalent options ----------------------------------------------------------------------------------------------

_CONDITIONS = {"after": "afterok", "after-any": "afterany", "after-failure": "afternotok"}


def _condition(field: str, jobs: Sequence[str]) -> str:
    for job in jobs:
        if not _ID.fullmatch(job):
            what = "Slurm knows its own jobs only"
            raise SpecError(
                what, field=field, need="an id of Slurm", have=job, hint=f"--{field} 1234; see `squeue --me`"
            )
    return ":".join([_CONDITIONS[field], *jobs])


def _cpus(compiled: Compiled, unit: Unit) -> list[str]:
    return [f"--cpus-per-task={-(-unit.shape.cpu // 1000) or 1}"]


def _memory(compiled: Compiled, unit: Unit) -> list[str]:
    """0 means no limit here; for Slurm it means the whole memory of the node."""
    return [f"--mem={-(-unit.shape.memory // MIB)}M"] if unit.shape.memory else []


def _gpus(compiled: Compiled, unit: Unit) -> list[str]:
    return [f"--gres=gpu:{unit.shape.gpus}"] if unit.shape.gpus else []


def _node(compiled: Compiled, unit: Unit) -> list[str]:
    """Slurm would allocate all of several nodes, not any one of them."""
    names = unit.shape.where.nodes
    if len(names) > 1:
        what = "Slurm has no option for any of several nodes"
        raise SpecError(what, field="resources.node", need="one node", have=", ".join(names), hint=f"--node {names[0]}")
    return [f"--nodelist={name}" for name in names]


def _exclude(compiled: Compiled, unit: Unit) -> list[str]:
    return [f"--exclude={','.join(unit.shape.where.without)}"]


def _time(compiled: Compiled, unit: Unit) -> list[str]:
    return [f"--time={-(-unit.time_limit // MINUTE)}"] if unit.time_limit else []


def _begin(compiled: Compiled, unit: Unit) -> list[str]:
    return [f"--begin=now+{-(-unit.begin // SECOND)}"] if unit.begin else []


def _deadline(compiled: Compiled, unit: Unit) -> list[str]:
    """Slurm removes a job that can no longer end in time."""
    if unit.if_late != "cancel":
        what = "Slurm cancels a job that misses its deadline"
        raise SpecError(
            what, field="deadline", need="if-late: cancel", have=unit.if_late, hint="add `--if-late cancel`"
        )
    return [f"--deadline=now+{unit.deadline // SECOND}"]


def _retry(compiled: Compiled, unit: Unit) -> list[str]:
    if unit.retry.limit:
        what, have = "Slurm does not run a command again that fails", str(unit.retry.limit)
        raise SpecError(what, field="retry", need="0", have=have, hint="--retries 0; or submit it without `--via`")
    return ["--no-requeue"]


def _output(compiled: Compiled, unit: Unit) -> list[str]:
    """Translate the pattern: `%t`, `%r` and `%a` (the attempt) have other meanings in Slurm."""
    stands = {"%%": "%%", "%j": "%j", "%t": unit.tasks[0].name, "%r": "0"}
    if "%a" in re.findall("%.", unit.output):
        hint = f"--output {unit.output.replace('%a', '%j')}"
        raise SpecError("Slurm has no pattern for the attempt", field="output", have=unit.output, hint=hint)
    return [f"--output={re.sub('%.', lambda sign: stands[sign[0]], unit.output)}"]


_OPTIONS: dict[str, Callable[[Compiled, Unit], list[str]]] = {
    "resources.cpu": _cpus,
    "resources.memory": _memory,
    "resources.gpu": _gpus,
    "resources.node": _node,
    "resources.exclude_node": _exclude,
    "time-limit": _time,
    "begin": _begin,
    "deadline": _deadline,
    "retry": _retry,
    "output": _output,
    "name": lambda compiled, unit: [f"--job-name={compiled.name}"],
    "hold": lambda compiled, unit: ["--hold"],
}


def _submit(script: str, options: Sequence[str]) -> Handed:
    expected = _START.search(commands.test(script, options))
    starts, _, nodes, partition = expected.groups() if expected else ("", "", "", "")
    job = commands.submit(script, options)
    return Handed(job, starts, nodes, partition, f"squeue -j {job}")

"""Handing one job to Slurm as it is: `poise submit --via slurm`. Poise keeps nothing of it, and Slurm runs it."""

import re
import shlex
from collections.abc import Sequence

from poise.errors import SpecError
from poise.model.spec import Compiled
from poise.ports import Handed
from poise.units import MINUTE
from poise_slurm import commands

MIB = 2**20

_START = re.compile(r"start at (\S+) using (\d+) processors on nodes (\S+) in partition (\S+)")


def hand_over(compiled: Compiled, text: str) -> Handed:
    """Submit a compiled job of one task, with the `#SBATCH` lines of its script: what these ask for that Poise does not
    know, such as a partition, counts too. Raises `SpecError` for what one job of Slurm cannot be, and `Fault` with what
    `sbatch` says.
    """
    unit, *others = compiled.units
    if others or len(unit.tasks) != 1 or unit.tasks[0].parts:
        have = f"{sum(len(one.tasks) for one in compiled.units)} tasks"
        raise SpecError("one command can be handed to Slurm", field="--via", have=have, hint="`poise up --on slurm`")
    if unit.secrets:
        names = ", ".join(unit.secrets)
        raise SpecError("others can read the scripts of Slurm", field="secrets", have=names, hint="use a file")
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    task, shape = unit.tasks[0], unit.shape
    variables = [f"export {name}={shlex.quote(value)}" for name, value in {**compiled.env, **task.env}.items()]
    script = "\n".join(["#!/bin/sh", *lines, *variables, f"exec {shlex.join(task.argv)}", ""])
    options = [f"--cpus-per-task={-(-shape.cpu // 1000) or 1}", f"--chdir={compiled.folder or '.'}"]
    options += [f"--mem={-(-shape.memory // MIB)}M"] if shape.memory else []
    options += [f"--gres=gpu:{shape.gpus}"] if shape.gpus else []
    options += [f"--time={-(-unit.time_limit // MINUTE)}"] if unit.time_limit else []
    options += [f"--job-name={compiled.name}"] if compiled.name else []
    options += [f"--output={unit.output}"] if unit.output else []
    return _submit(script, options)


def _submit(script: str, options: Sequence[str]) -> Handed:
    expected = _START.search(commands.test(script, options))
    starts, _, nodes, partition = expected.groups() if expected else ("", "", "", "")
    job = commands.submit(script, options)
    return Handed(job, starts, nodes, partition, f"squeue -j {job}")

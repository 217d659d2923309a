"""`--on slurm[:PARTITION,…][,NAME=VALUE,…]`: nodes of allocations that this user gets from Slurm."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poise.errors import InputError
from poise.model.reports.nodes import Check
from poise.model.spec import Compiled
from poise.ports import Handed, Substrate
from poise_slurm.settings import parse_settings

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")


def check(argument: str) -> None:
    """Raise `InputError` if Slurm's commands are not here, or the argument is wrong."""
    parse_settings(argument)
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        raise InputError(
            "the commands of Slurm are not on this machine",
            field="--on",
            need=", ".join(COMMANDS),
            have=f"no {', '.join(missing)} in PATH",
            hint="`ssh` to a login node of the cluster, and run it there",
        )


def is_local(argument: str) -> bool:
    """Whether all machines are this one: never."""
    return False


def grows(argument: str) -> bool:
    """Whether machines come on request: always."""
    return True


def examine(argument: str, folder: str) -> Iterator[Check]:
    """Check the Slurm cluster for this user: partitions, allocations, and a folder that its machines share."""
    from poise_slurm.checkup import checks

    return checks(parse_settings(argument), Path(folder))


def hand_over(spec: Mapping[str, Any], compiled: Compiled, script: str) -> Handed:
    """Submit one job unchanged, with the `#SBATCH` lines of its script."""
    from poise_slurm.handing import hand_over

    return hand_over(spec, compiled, script)


def connect(argument: str, home: str, folder: str) -> Substrate:
    """Connect to a Slurm cluster as an ordinary user. Raises `Fault` if slurmctld does not answer."""
    from poise_slurm.cluster import SlurmCluster  # slow to import

    return SlurmCluster(parse_settings(argument), Path(folder))

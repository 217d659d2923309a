"""Options for reading a trace, for every format."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from poise.errors import SpecError
from poise.units import MINUTE, SECOND

Information = Literal["oracle", "estimated", "none"]
"""Accuracy of the run times that users declare: the truth, an estimate, or nothing."""

SIGMA = 0.54
"""Standard deviation of the lognormal noise of estimates: its median is 1 and its P90 a factor 2, as ln 2 / 1.2816 =
0.541.
"""

MAX_PER_NODE = 1024


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading a trace.

    `devices_per_node` is the maximum number of devices per task of a gang. `information` selects the run times that
    users declare; with `estimated`, a trace with its own estimates keeps them. `jobs` is the number of jobs to read, by
    arrival (0: all). `last` selects the jobs submitted within these nanoseconds before the last submission (0: all).
    `load` divides the times between arrivals, `seed` determines the noise of estimates. With `strict`, the first bad
    row is an error. `cpu_work` includes jobs without devices from training traces.

    With `elastic`, jobs can have any size in traces with scaling data: Pollux's, which also choose their batches, and
    ElasticFlow's, as far as the tables of `throughputs` have rates.

    `columns` maps the fields of a plain CSV to its columns. `throughputs` is the table for a trace of steps, or the
    folder of the profiles or tables for elastic jobs. `speeds` are the throughputs of the fleet, by `class@model`: a
    log of Poise has the run time on one model, and these give it on others. `requests` is the number of requests that
    one device serves concurrently.

    No trace contains the cost of preemption. With `saves`, work resumes where it was stopped; otherwise, and after a
    failure, it resumes from its latest checkpoint, one every `checkpoint` nanoseconds of running. Stopping takes `save`
    and resuming `restore` nanoseconds; 30 s is the default of the artifact of Pollux (Qiao et al., OSDI 2021).
    """

    devices_per_node: int = 8
    information: Information = "estimated"
    jobs: int = 0
    last: int = 0
    load: float = 1.0
    seed: int = 0
    strict: bool = False
    cpu_work: bool = False
    elastic: bool = False
    columns: Mapping[str, str] = {}
    throughputs: Path | None = None
    speeds: Mapping[str, float] = {}
    requests: int = 8
    checkpoint: int = 10 * MINUTE
    saves: bool = True
    save: int = 0
    restore: int = 30 * SECOND

    def check(self) -> None:
        """Raise `SpecError` for a value out of range."""
        if not 1 <= self.devices_per_node <= MAX_PER_NODE:
            raise _unfit("devices_per_node", f"1 to {MAX_PER_NODE}", self.devices_per_node)
        if not (math.isfinite(self.load) and self.load > 0):
            raise _unfit("load", "a number above 0, such as 1.5", self.load, "`--load 1.5`")
        if self.jobs < 0:
            raise _unfit("jobs", "0 for all, or a number of jobs", self.jobs)
        if self.jobs and self.last:
            hint = "one of `--jobs` and `--last`"
            raise SpecError("the first jobs and the last ones exclude each other", field="last", hint=hint)
        if self.requests < 1:
            raise _unfit("requests", "1 or more", self.requests)


def _unfit(field: str, need: str, have: object, hint: str = "") -> SpecError:
    return SpecError(f"`{field}` is out of range", code="E103", field=field, need=need, have=str(have), hint=hint)

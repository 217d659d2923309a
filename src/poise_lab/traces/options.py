"""How a trace is to be read, whatever its format."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from poise.errors import SpecError
from poise.units import MINUTE, SECOND

Information = Literal["oracle", "estimated", "none"]
"""What users say of their run times: the truth, an estimate, or nothing."""

SIGMA = 0.54
"""Of the estimates' lognormal noise: its median is 1 and its P90 a factor 2, as ln 2 / 1.2816 = 0.541."""

MAX_PER_NODE = 1024


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a trace is to be read.

    `devices_per_node` is how many a gang's tasks have each. `information` is what users say of their run times; a trace
    with estimates of its own keeps them when it is `estimated`. `jobs` are the first so many to arrive (0: all),
    `last` are the nanoseconds before the last submission within which the others were submitted (0: all). `load`
    divides the times between arrivals, `seed` decides the noise of estimates. With `strict` the first bad row is
    an error. `cpu_work` also reads jobs without a device, in traces of training.

    With `elastic` the jobs of a trace that knows how they scale take any size: Pollux's, which also choose their
    batches, and ElasticFlow's, as far as the tables of `throughputs` go.

    `columns` says which column of a plain CSV is what. `throughputs` is the table that goes with a trace of steps, or
    the folder of the profiles or tables that elastic jobs need.
    `requests` are how many requests of a trace of requests one device serves at once.

    What stopping costs is in no trace: with `saves` work goes on where it was stopped, and else, as after a failure,
    from its latest checkpoint, one every `checkpoint` nanoseconds of running. Going takes `save` and coming back
    `restore` nanoseconds; 30 s is what Pollux's simulator takes (Qiao et al., OSDI 2021, its artifact's default).
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
    requests: int = 8
    checkpoint: int = 10 * MINUTE
    saves: bool = True
    save: int = 0
    restore: int = 30 * SECOND

    def check(self) -> None:
        """Raise `SpecError` for what makes no sense."""
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

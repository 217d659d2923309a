"""Compare the twin with Gavel's own simulator: the same traces, cluster and rounds, job by job.

    python benchmarks/fidelity_gavel.py [--data ../shared/data/gavel] [--cases max_min_fairness,minimize_makespan]
        [--peers max_min_fairness_perf,fifo_perf] [--without waits] [--each] [--json]

The cases are those that were run with Gavel @ c4fa400 (Narayanan et al., OSDI 2020; github.com/stanford-futuredata,
`gavel`) in trace mode: one device per node, rounds of 360 s, no cost of preemption, known run times. Each case runs
twice here: with the shipped policy, and with Gavel's own mechanisms in place of ours (`AsGavel`). If the first differs
and the second does not, the difference is due to these mechanisms:

waits       shares are recomputed every 1,920 s at most, and new jobs wait until then
forgets     the debt to a unit is reset then; in between, its priority is its share over the part it has received
by-model    all V100 are assigned first, also to units without a share of them, then P100, then K80; if speeds are
            ignored, in a random order for each round
middle      capacity that nobody needs is not assigned to its best use, but left where the solver leaves it

`fifo` without speeds has a further difference: it draws a model among those with room, but then takes the
alphabetically last one, the V100 (`policies/fifo.py`): of 48 devices it uses 8, and over-allocates those.

`--without waits` and so on leaves one of them out. `--each` also reports the error of the mean with none of the
mechanisms (our policy except for its accounting of debts), and with each of them alone.

`osdi20_gen4k_m` is the list of jobs behind the paper's points at 2.0 jobs an hour; its means are over jobs 4,000 to
5,000, and it ends soon after Gavel's run of it did.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any, NamedTuple

import clusters
import msgspec

from poise.kernel.controller import Settings
from poise.model.decisions import Plan
from poise.model.views import Snapshot
from poise.model.workload import Workload
from poise.policy.rounds import Claim, Entry, Rounds, Stage, first_entry
from poise.policy.shares import Allocate, finish_time_fair, first_come, max_min, min_makespan
from poise.policy.suites import ClusterPolicy, policy_named
from poise.units import HOUR, SECOND
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.trial import simulate

ROUND = 360 * SECOND
WITHIN = 0.05
"""Maximum error relative to Gavel's mean completion time."""

MECHANISMS = ("waits", "forgets", "by-model", "middle")
RENEWED = 1920 * SECOND
LONGER = 1.02
"""Maximum duration over that of Gavel's run, for a window of jobs: jobs that are not done by then are left out."""


class Case(NamedTuple):
    trace: str
    devices: tuple[int, int, int]
    jobs: int = 0
    window: tuple[int, int] = (0, 0)


CASES = {
    "max_min_fairness": Case("max_min_fairness.trace", (8, 16, 24)),
    "minimize_makespan": Case("minimize_makespan.trace", (8, 16, 24)),
    "gen400": Case("gen_continuous_multi_rate2.0_seed0.trace.gz", (36, 36, 36), 400),
    "gen400c24": Case("gen_continuous_multi_rate2.0_seed0.trace.gz", (24, 24, 24), 400),
    "osdi20_gen4k_m": Case("gen_osdi20_continuous_multi_rate2.0_seed0.trace.gz", (36, 36, 36), 0, (4000, 5001)),
}


class Peer(NamedTuple):
    """Our policy, Gavel's allocation, whether it uses speeds, and whether it leaves devices idle."""

    ours: str
    allocate: Allocate
    aware: bool = True
    idle: bool = False


def _as_it_is_written(claims: Any) -> Any:
    raise AssertionError("chosen by `AsGavel`, which knows who is who")


PEERS = {
    "max_min_fairness_perf": Peer("max-min", partial(max_min, spare=False)),
    "max_min_fairness": Peer("max-min-agnostic", partial(max_min, spare=False), aware=False),
    "finish_time_fairness_perf": Peer("finish-time-fair", partial(finish_time_fair, spare=False)),
    "finish_time_fairness": Peer("finish-time-fair-agnostic", partial(finish_time_fair, spare=False), aware=False),
    "min_total_duration_perf": Peer("min-makespan", partial(min_makespan, spare=False)),
    "min_total_duration": Peer("min-makespan-agnostic", partial(min_makespan, spare=False), aware=False),
    "fifo_perf": Peer("fifo-fastest", first_come, idle=True),
    "fifo": Peer("fifo", _as_it_is_written, aware=False, idle=True),
}
SPARING: dict[Allocate, Allocate] = {
    peer.allocate: getattr(peer.allocate, "func", peer.allocate) for peer in PEERS.values()
}


class AsGavel(Rounds):
    """Gavel's round mechanism around an allocation, as in its simulator; it keeps its state between rounds."""

    def __init__(
        self, peer: Peer, mechanisms: Sequence[str] = MECHANISMS, *, turn: int = ROUND, renewed: int = RENEWED
    ) -> None:
        allocate = peer.allocate if "middle" in mechanisms else SPARING[peer.allocate]
        super().__init__(f"{peer.ours}, as Gavel has it", allocate, aware=peer.aware, idle=peer.idle, turn=turn)
        self.mechanisms = mechanisms
        self.renewed = renewed
        self.half = turn / 2 / SECOND
        self.units: dict[str, Entry] = {}
        self.shared: set[str] = set()
        self.had: dict[str, list[float]] = {}
        self.models: list[str] = []
        self.reset = self.at = self.next = 0
        self.dirty = True
        self.types = list(clusters.GAVEL)
        self.order_of_models = random.Random(5)
        self.choice = random.Random(0)
        self.stays: dict[str, tuple[str, float]] = {}

    def decide(self, view: Snapshot, /) -> Plan:
        stage, now = self.stage(view), view.now
        units = {claim.unit: self.units.get(claim.unit) or first_entry(claim) for claim in stage.claims}
        self.dirty |= units.keys() != self.units.keys()
        self.units = units
        if not units:
            self.reset = 0
            return Plan(base=view.revision, policy=self.name)
        begins = now >= self.next
        if begins:
            self._begin(stage, now)
        for entry in units.values():
            if not entry.shares:  # the unit waits until shares are recomputed
                entry.shares = entry.speeds = [0.0] * len(stage.models)
        order = partial(self._order, stage)
        decisions, _ = stage.carry_out(units, order, self.name, begins=begins)
        return Plan(base=view.revision, policy=self.name, decisions=tuple(decisions), until=self.next)

    def stage(self, view: Snapshot) -> Stage:
        return Stage(view)

    def _begin(self, stage: Stage, now: int) -> None:
        self.models = stage.models
        for claim in stage.claims:
            had, resident = self.had.setdefault(claim.unit, [self.half] * len(stage.models)), claim.resident
            if resident is not None:
                had[stage.models.index(resident.model)] += (now - max(self.at, resident.since)) / SECOND
        waited = "waits" not in self.mechanisms or not self.reset or now - self.reset >= self.renewed
        if self.dirty and waited:
            self.share_out(stage, self.units)
            if "forgets" in self.mechanisms:
                self.had = {claim.unit: [self.half] * len(stage.models) for claim in stage.claims}
            self.shared, self.dirty, self.reset = set(self.units), False, now
        for entry in self.units.values():
            entry.model = -1
        self.at, self.next = now, now + self.turn
        self.types = [model for model in clusters.GAVEL if model in stage.models]
        if not self.aware:
            self.order_of_models.shuffle(self.types)

    def share_out(self, stage: Stage, units: Mapping[str, Entry]) -> None:
        """Share out as usual, except that first-come allocation without speeds works as in Gavel's `fifo.py`."""
        if self.allocate is not _as_it_is_written:
            super().share_out(stage, units)
            return
        left = dict(zip(stage.models, stage.capacity, strict=True))
        queue = [claim for claim in stage.claims if claim.unit not in self.stays]
        for claim in stage.claims:
            units[claim.unit].speeds = [float(rate > 0) for rate in stage.rates(claim)]

        def may(claim: Claim, model: str) -> bool:
            return units[claim.unit].speeds[stage.models.index(model)] > 0

        for unit, (model, devices) in list(self.stays.items()):
            if unit in units:
                left[model] -= devices
                continue
            del self.stays[unit]  # the first takes its place, even if later units hold it
            if queue and queue[0].devices <= left[model] and may(queue[0], model):
                claim = queue.pop(0)
                self.stays[claim.unit] = model, claim.devices
                left[model] -= claim.devices
        free = sorted(model for model in left if left[model] > 0)
        while queue and free:
            claim = queue.pop(0)
            roomy = [place for place, model in enumerate(free) if left[model] >= claim.devices]
            if not roomy:
                break
            drawn = roomy[self.choice.randrange(len(roomy))]
            model = free[-1]  # not the drawn one, as in `fifo.py`
            if may(claim, model):
                self.stays[claim.unit] = model, claim.devices
                left[model] -= claim.devices
                if not left[model]:
                    free.pop(drawn)
        self.stays = {claim.unit: self.stays[claim.unit] for claim in stage.claims if claim.unit in self.stays}
        for unit, entry in units.items():
            model, _ = self.stays.get(unit, ("", 0.0))
            entry.shares = [float(model == name) for name in stage.models]

    def _order(self, stage: Stage) -> list[tuple[int, int]]:
        """Order units model by model, by the ratio of their share to the part of their time that they have received,
        largest first.
        """
        in_all = [sum(self.had[claim.unit][model] for claim in stage.claims) for model in range(len(stage.models))]
        found: list[tuple[int, float, float, int, int]] = []
        for place, name in enumerate(self.types):
            model = stage.models.index(name)
            for number, claim in enumerate(stage.claims):
                entry = self.units[claim.unit]
                share = entry.shares[model]
                if claim.unit in self.shared and entry.speeds[model] and (share or not self.idle):
                    priority = share / (self.had[claim.unit][model] / in_all[model])
                    first = place if "by-model" in self.mechanisms else 0
                    found.append((first, -priority, -share, number, model))
        return [(number, model) for *_, number, model in sorted(found, key=lambda of: of[:3])]


def known_exactly(workload: Workload) -> Workload:
    """Return the workload with a separate class for each job: Gavel gets the steps of each, and learns nothing from
    others.
    """
    arrivals, throughputs = [], {}
    for number, arrival in enumerate(workload.arrivals):
        [unit] = arrival.units
        kind = f"{unit.kind} of job {number}"
        arrivals.append(msgspec.structs.replace(arrival, units=(msgspec.structs.replace(unit, kind=kind),)))
        for model in clusters.GAVEL:
            if rate := workload.throughputs.get(f"{unit.kind}@{model}"):
                throughputs[f"{kind}@{model}"] = rate
    return msgspec.structs.replace(workload, arrivals=tuple(arrivals), throughputs=throughputs)


class Ran(NamedTuple):
    """Seconds from submission to end by job number, and the CPU time."""

    completions: dict[int, float]
    makespan: float
    rounds: int
    seconds: float


def run(workload: Workload, case: Case, policy: ClusterPolicy, until: int = 0) -> Ran:
    began = process_time()
    result = simulate(
        workload, clusters.nodes_of(clusters.gavel(case.devices)), policy, Settings(every=ROUND), until=until
    )
    ended = {number: job.completion / SECOND for number, job in enumerate(result.jobs) if job.ended >= 0}
    makespan = max(job.ended for job in result.jobs) / SECOND
    return Ran(ended, makespan, result.rounds, process_time() - began)


def mean_of(theirs: Mapping[int, float], case: Case) -> float:
    """Return the mean in seconds, over the jobs of the window if there is one."""
    begin, end = case.window
    return fmean(seconds for job, seconds in theirs.items() if not end or begin <= job < end)


def compare(ran: Ran, theirs: Mapping[int, float], case: Case) -> dict[str, float]:
    """Compare the jobs in both results: mean completion, its difference, and the mean difference job by job."""
    begin, end = case.window
    jobs = [job for job in theirs if job in ran.completions and (not end or begin <= job < end)]
    mean, peer = fmean(ran.completions[job] for job in jobs), fmean(theirs[job] for job in jobs)
    each = fmean(abs(ran.completions[job] / theirs[job] - 1) for job in jobs)
    return {"jobs": len(jobs), "hours": mean / 3600, "off": mean / peer - 1, "each": each}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/gavel"))
    parser.add_argument("--cases", default="max_min_fairness,minimize_makespan,gen400,gen400c24")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--without", default="", help="a mechanism of Gavel's that is left out")
    parser.add_argument("--each", action="store_true", help="each mechanism alone, too")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    mechanisms = [name for name in MECHANISMS if name != asked.without]
    alone: dict[str, tuple[str, ...]] = {"none": (), **{name: (name,) for name in MECHANISMS}} if asked.each else {}
    rows: list[dict[str, Any]] = []
    heads = "".join(f" {name:>9}" for name in alone)
    print(
        f"{'case':18} {'policy':26} {'Gavel h':>8} {'ours h':>8} {'':>7} {'each':>6}{heads}   as Gavel h",
        file=sys.stderr,
    )
    for name in asked.cases.split(","):
        case = CASES[name]
        options = Options(devices_per_node=1, information="oracle", jobs=case.jobs, restore=0)
        table = asked.data / "simulation_throughputs.json"
        workload = read_trace(
            asked.data / "traces" / case.trace, msgspec.structs.replace(options, throughputs=table), "gavel"
        )
        workload = known_exactly(workload)
        for peer in asked.peers.split(","):
            path = asked.data / "reruns" / f"{name}.{peer}.json"
            if not path.exists():
                path = asked.data / "reruns" / f"{name}_{peer}.json"
            if not path.exists():
                continue
            known = json.loads(path.read_text())
            theirs = {int(job): seconds for job, seconds in known["jct"].items()}
            until = int(known["sim_end_h"] * LONGER * HOUR) if case.window[1] else 0
            ours = run(workload, case, policy_named(PEERS[peer].ours), until)
            row = {"case": name, "peer": peer, "policy": PEERS[peer].ours, "theirs": mean_of(theirs, case) / 3600}
            row |= compare(ours, theirs, case) | {"seconds": ours.seconds, "rounds": ours.rounds}
            row["makespan"] = ours.makespan / 3600
            row["alone"] = {
                name: compare(run(workload, case, AsGavel(PEERS[peer], chosen), until), theirs, case)
                for name, chosen in alone.items()
            }
            same = run(workload, case, AsGavel(PEERS[peer], mechanisms), until)
            as_gavel = compare(same, theirs, case)
            row["as gavel"] = as_gavel
            rows.append(row)
            told = "".join(f" {of['off']:+9.1%}" for of in row["alone"].values())
            print(
                f"{name:18} {row['policy']:26} {row['theirs']:8.3f} {row['hours']:8.3f} {row['off']:+7.1%} "
                f"{row['each']:6.1%}{told} {as_gavel['hours']:8.3f} {as_gavel['off']:+7.1%} {as_gavel['each']:6.1%}  "
                f"({ours.seconds:.0f} s)",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    if asked.json:
        print(json.dumps(rows))
    apart = [row for row in rows if abs(row["off"]) > WITHIN and abs(row["as gavel"]["off"]) > WITHIN]
    sys.exit(1 if apart else 0)


if __name__ == "__main__":
    main()

"""Deadline guarantees with admission control, and elastic sizes: the scheduler of ElasticFlow.

After ElasticFlow (Gu et al., ASPLOS 2023, section 4). The *minimum satisfactory share* of a job is the smallest size
with which it meets its deadline, given the reservations of the others. It is found by *progressive filling*: in each
interval the job takes the free devices up to a limit, and the limit is raised until the work is done in time. Jobs are
filled in order of their deadlines. A new job is *admitted* if the deadlines of all admitted jobs, and its own, are then
met. Devices that no job needs now go one step at a time to the job with the largest *marginal return*: the step that
adds least device time for the work that it gets done. Sizes are a gang's minimum, and powers of two above it.

ElasticFlow drops jobs that it does not admit. Here they become best-effort work, as does work without a deadline or
without a known run time. Best-effort work gets the rest: running units before waiting ones, then in order of arrival.
It is admitted later if its deadline can be met with the devices that the others leave. An admitted job whose deadline
can no longer be met (its estimate was too low) becomes best-effort work as well.

ElasticFlow has devices of one model. Here each model has a future of its own: waiting jobs are filled on their fastest
model first, and running jobs stay on their model. Services come before all else. Work that may not be preempted, or
runs on a closed node, keeps its devices until its expected end.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from poise.model.decisions import Plan
from poise.model.fleet import DEVICES, Bools, Floats, Ints
from poise.model.profiles import ENDLESS
from poise.model.resources import Shape
from poise.model.views import Snapshot
from poise.policy.allowance import Allowance
from poise.policy.claims import Claim, Rows, carry_out, claims_of, devices_by_model, same, vacated
from poise.policy.elastic import speeds_with
from poise.policy.feasible import MOST_TASKS, ability
from poise.policy.predict import Speeds, speeds_of
from poise.policy.running import Running, lost_work
from poise.units import MINUTE, SECOND

EVERY = MINUTE
"""Minimum time between two plans: the slot of ElasticFlow's artifact. In between, waiting jobs get free devices."""

LATEST = 15 * MINUTE
"""Maximum time between two plans: running jobs may take longer than estimated."""

RESTART = 30 * SECOND
"""Cost of a restart if the job does not declare it."""

MARGIN = 0.05
"""Part of the time until a deadline that is kept free: for startup, restarts, and errors of estimates."""

REFILLS = 128
"""Fills in one plan that test new jobs which do not fit behind the admitted ones (0.1 ms each). The other new jobs are
tested in the next plan."""

UNKNOWN = "default"
"""Source of an estimate that is only a guess."""


class Job(NamedTuple):
    """A claim with its possible sizes: `devices` and `speeds` (relative to one task) are by *level*, from none to its
    largest size. `work` is the remaining work by model, in nanoseconds of one task. `due` is the latest instant at
    which it should end (0: best effort), `restart` the time that a change of size costs, and `changes` the work that
    could be done in that time, by level.
    """

    claim: Claim
    tasks: tuple[int, ...]
    devices: Ints
    speeds: Floats
    work: Mapping[int, float]
    due: int
    restart: int
    changes: Floats

    @property
    def unit(self) -> str:
        return self.claim.unit

    @property
    def runs(self) -> bool:
        return bool(self.claim.rows) and not self.claim.stopping

    def needs(self, model: int) -> Floats:
        """Return the work by level, including the cost of a change of size."""
        return self.work[model] + self.changes

    def pays(self, level: int, model: int) -> bool:
        """Return whether a running job ends sooner with this size despite the restart."""
        tasks = len(self.claim.rows)
        if not self.runs or self.tasks[level] <= tasks or (self.claim.resident and self.claim.resident.resizes):
            return True
        now = self.speeds[max(1, int(np.searchsorted(self.tasks, tasks, "right")) - 1)]
        return bool(self.work[model] / now > self.work[model] / self.speeds[level] + self.restart)


class Filled(NamedTuple):
    """Reservation of a job: its level in each interval, until its `end` in the last one. Its size first changes at the
    instant `changes` (0: never).
    """

    job: Job
    levels: Ints
    end: int
    changes: int


class Future:
    """The free devices of one model over time: `free[i]` from the instant `at[i]`, the last without end. Immutable."""

    def __init__(self, at: Ints, free: Ints) -> None:
        self.at, self.free = at, free

    def fill(self, job: Job, model: int) -> Filled | None:
        """Return the smallest share with which the job ends in time; None if there is none."""
        stretches = int(np.searchsorted(self.at, job.due))
        if not stretches:
            return None
        at = self.at[:stretches]
        lasts = np.empty(stretches, np.int64)
        lasts[:-1], lasts[-1] = at[1:] - at[:-1], job.due - at[-1]
        fitting = np.searchsorted(job.devices, self.free[:stretches], "right") - 1
        limits = np.arange(1, len(job.tasks))
        levels: Ints = np.minimum(fitting, limits[:, None])
        done = job.speeds[levels] * lasts
        needs = job.needs(model)[1:]
        enough = done.sum(axis=1) >= needs
        if not enough.any():
            return None
        limit = int(enough.argmax())
        summed = np.cumsum(done[limit])
        last = min(int(np.searchsorted(summed, needs[limit])), stretches - 1)
        before = float(summed[last - 1]) if last else 0.0
        speed = float(job.speeds[levels[limit, last]])
        end = int(at[last]) + int((float(needs[limit]) - before) / speed) if speed else int(at[last])
        taken = levels[limit, : last + 1]
        others = np.flatnonzero(taken != taken[0])
        return Filled(job, taken, max(end, int(at[last]) + 1), int(at[others[0]]) if len(others) else 0)

    def without(self, filled: Filled) -> "Future":
        """Return the free devices that remain after this reservation."""
        taken = filled.job.devices[filled.levels]
        return self._split(filled.end, len(taken), taken)

    def held(self, devices: int, until: int) -> "Future":
        """Return the free devices that remain if up to `devices` are taken until this instant."""
        stretches = int(np.searchsorted(self.at, until))
        return self._split(until, stretches, np.minimum(devices, self.free[:stretches]))

    def _split(self, end: int, stretches: int, taken: Ints) -> "Future":
        """Return a copy with `taken` devices less in the first intervals, of which the last ends at `end`."""
        at, free = self.at, self.free
        if stretches == len(at) or at[stretches] > end:
            at = np.concatenate((at[:stretches], [end], at[stretches:]))
            free = np.concatenate((free[:stretches] - taken, free[stretches - 1 : stretches], free[stretches:]))
            return Future(at, free)
        return Future(at, np.concatenate((free[:stretches] - taken, free[stretches:])))


class ElasticFlow:
    """Plans when work arrives or ends, or a planned size changes. Its memory holds the admitted and the rejected work,
    and the plan until it is carried out.
    """

    name = "elasticflow"

    def decide(self, view: Snapshot, /) -> Plan:
        claimed = claims_of(view)
        memory = view.memory.get(self.name, {})
        at, until, seen = int(memory.get("at", 0)), int(memory.get("until", 0)), _seen(view, claimed)
        wanted: dict[str, Rows] = {}
        told: dict[str, Any] = {}
        words: Mapping[str, str] = {}
        if claimed:
            if not at or view.now >= min(until, at + LATEST) or (view.now >= at + EVERY and seen != memory.get("seen")):
                planned = _Planned(view, claimed, memory)
                wanted, words = planned.rows(), planned.words
                names = view.fleet.names
                plan = {
                    claim.unit: [names[row] for row in rows]
                    for claim in claimed
                    if (rows := wanted.get(claim.unit, ())) and not same(rows, claim.rows)
                }
                told = {
                    "at": view.now,
                    "until": max(planned.until, view.now + EVERY),
                    "seen": seen,
                    "admitted": sorted(planned.admitted),
                    "refused": sorted(planned.refused),
                    "plan": plan,
                }
            else:
                wanted = _go_on(view, claimed, memory.get("plan", {}))
                told = dict(memory)
        until = 0
        if told:
            until = told["at"] + EVERY if told["seen"] != seen else min(told["until"], told["at"] + LATEST)
        return carry_out(
            view,
            self.name,
            claimed,
            wanted,
            words,
            until=until or None,
            memory={**view.memory, self.name: told} if told != memory else None,
        )


def _seen(view: Snapshot, claimed: Sequence[Claim]) -> int:
    """Return a checksum that changes when work comes or goes, or devices do."""
    units = ",".join(claim.unit for claim in claimed)
    return crc32(f"{units} {sorted(devices_by_model(view).items())}".encode())


# --- jobs ------------------------------------------------------------------------------------------------------------


class _Jobs:
    """Converts claims to jobs."""

    def __init__(self, view: Snapshot, claimed: Sequence[Claim]) -> None:
        self.view, self.fleet = view, view.fleet
        self.speeds: Speeds = speeds_of(view)
        self.models = {model.called: index for index, model in enumerate(self.fleet.models) if model.kind != "cpu"}
        self.capacity = devices_by_model(view)
        running = Running(self.fleet, self.speeds, view.now)
        left = running.left.tolist() if running.residents else []
        self.left = {one.unit: ns for one, ns in zip(running.residents, left, strict=True)}
        self._rows: dict[int, Bools] = {}
        self._room: dict[Shape, dict[int, int]] = {}
        self.jobs = [job for claim in claimed if not self.keeps(claim) and (job := self._job(claim))]

    def keeps(self, claim: Claim) -> bool:
        """Return whether a unit keeps its devices whatever is planned."""
        one = claim.resident
        if one is None or claim.stopping:
            return False
        return claim.stays or bool(one.serves) or any(self.fleet.closed[row] for row in claim.rows)

    def rows(self, model: int) -> Bools:
        """Return a mask of the open nodes that have devices of the model."""
        found = self._rows.get(model)
        if found is None:
            found = self._rows[model] = (self.fleet.device_model == model).any(axis=1) & (self.fleet.closed == 0)
        return found

    def model_of(self, claim: Claim) -> int:
        """Return the model of a running unit's devices, or of most of them."""
        found = Counter(int(self.fleet.device_model[row, 0]) for row in claim.rows)
        called = claim.resident.model if claim.resident is not None else ""
        return self.models[called] if called in self.models else found.most_common(1)[0][0]

    def _job(self, claim: Claim) -> Job | None:
        able, holds = ability(self.fleet, claim.shape), self._holds(claim.shape)
        work, known = self._running(claim) if claim.resident is not None else self._waiting(claim, able.models)
        work = {model: left for model, left in work.items() if holds.get(model, 0) >= claim.least}
        most = min(claim.most, max((holds[model] for model in work), default=claim.least))
        if claim.least < claim.most:
            speeds = speeds_with(self.view.speedups.get(claim.unit), claim.most)
        else:
            speeds = (0.0,) * claim.least + (1.0,)
        tasks = [0, claim.least]
        tasks += [size for size in _powers(claim.least, most) if speeds[size] > speeds[tasks[-1]]]
        one = claim.resident
        restart = (lost_work(one, self.view.now) + (RESTART if not one.restore else 0)) if one is not None else 0
        by_level = np.array([speeds[size] for size in tasks])
        others = np.array([size != len(claim.rows) for size in tasks])
        said = one or claim.candidate
        due = said.due if known and said is not None else 0
        return Job(
            claim=claim,
            tasks=tuple(tasks),
            devices=np.array(tasks) * claim.shape.gpus,
            speeds=by_level,
            work=work,
            due=self.view.now + int((due - self.view.now) * (1 - MARGIN)) if due else 0,
            restart=restart,
            changes=restart * by_level * others * (not claim.stopping),
        )

    def _holds(self, shape: Shape) -> dict[int, int]:
        """Return how many tasks the open nodes hold, by suitable model."""
        found = self._room.get(shape)
        if found is None:
            able = ability(self.fleet, shape)
            room = able.by_row(self.fleet)
            found = self._room[shape] = {
                model: min(int(room[self.rows(model)].sum()), devices // shape.gpus)
                for model, devices in self.capacity.items()
                if able.models[model]
            }
        return found

    def _running(self, claim: Claim) -> tuple[dict[int, float], bool]:
        """Return the remaining work of a running unit on its model, and whether it is known."""
        one = claim.resident
        if one is None:
            return {}, False
        if claim.least >= claim.most:
            speed = 1.0
        else:
            speeds = speeds_with(self.view.speedups.get(claim.unit), max(claim.most, one.size))
            least = max(1, claim.least)
            speed = speeds[one.size] if one.gains or one.foreseen else speeds[least] * one.size / least
        work = max(1.0, self.left[claim.unit] * speed)
        return {self.model_of(claim): work}, self.speeds.of_attempt(one).source != UNKNOWN

    def _waiting(self, claim: Claim, able: Sequence[bool]) -> tuple[dict[int, float], bool]:
        """Return the work left of a waiting unit on each suitable model, fastest first, and whether it is known."""
        one = claim.candidate
        if one is None:
            return {}, False
        estimates = self.speeds.of(one.kind, claim.shape.wants.precision, one.declared, one.work, devices=True)
        left = self.speeds.left(one, claim.shape, able)
        speed = 1.0
        if claim.least < claim.most:
            speed = speeds_with(self.view.speedups.get(claim.unit), claim.most)[max(1, claim.least)]
        known = bool(one.left) or any(estimates[model].source != UNKNOWN for model in left)
        return {model: max(1.0, ns * speed) for model, ns in sorted(left.items(), key=_shortest)}, known


def _powers(least: int, most: int) -> Iterable[int]:
    """Yield the powers of two above `least`, up to `most`."""
    size = 1
    while size <= most:
        if size > least:
            yield size
        size *= 2


def _shortest(of: tuple[int, int]) -> tuple[int, int]:
    return of[1], of[0]


# --- the plan --------------------------------------------------------------------------------------------------------


class _Planned:
    """One plan: the admitted jobs, and the tasks of each job on each model `until` the next size changes."""

    def __init__(self, view: Snapshot, claimed: Sequence[Claim], memory: Mapping[str, Any]) -> None:
        self.view, self.claimed = view, claimed
        self._known = _Jobs(view, claimed)
        self._over = _over_quota(view, claimed)
        self._refills = REFILLS
        self.until = view.now + LATEST
        self.words: dict[str, str] = {}
        self.admitted: set[str] = set()
        self.refused: set[str] = set()
        self.given: dict[str, tuple[Job, int, int]] = {}
        """By unit, its job, its level now, and the model (-1: several)."""
        jobs = [job for job in self._known.jobs if job.unit not in self._over]
        self._free = self._promise(jobs, set(memory.get("admitted", ())), set(memory.get("refused", ())))
        self._hand_out(jobs)

    # --- admission

    def _promise(self, jobs: Sequence[Job], admitted: set[str], refused: set[str]) -> dict[int, int]:
        """Fill the admitted jobs and test the others. Return the devices of each model that are free now."""
        futures = self._futures(jobs)
        chains: dict[int, list[tuple[Filled | None, Future]]] = {
            model: [(None, future)] for model, future in futures.items()
        }
        jobs = [job for job in jobs if job.due]
        promised = sorted((job for job in jobs if job.unit in admitted), key=_by_due)
        lost = [job for job in promised if not self._append(chains, job)]
        for job in [*(job for job in jobs if job.unit not in admitted), *lost]:
            if self._append(chains, job):
                continue
            known = job.unit in refused or job in lost
            if known or (self._refills and not self._insert(chains, job)):
                self.refused.add(job.unit)
        free = {}
        for model, chain in chains.items():
            free[model] = int(chain[-1][1].free[0])
            for filled, _ in chain:
                if filled is None:
                    continue
                job, levels = filled.job, filled.levels
                self.admitted.add(job.unit)
                self.given[job.unit] = (job, int(levels[0]), model)
                share = job.tasks[int(levels.max())]
                self.words[job.unit] = f"its deadline is kept with {share} task{'s' * (share > 1)}"
                self.until = min(self.until, filled.changes or self.until)
        return free

    def _futures(self, jobs: Sequence[Job]) -> dict[int, Future]:
        """Return the future of each model, without devices of services and of work that always keeps its devices."""
        now, known = self.view.now, self._known
        futures = {
            model: Future(np.array([now], np.int64), np.array([devices], np.int64))
            for model, devices in known.capacity.items()
        }
        for claim in self.claimed:
            if not known.keeps(claim) or claim.resident is None:
                continue
            model = known.model_of(claim)
            devices = claim.shape.gpus * sum(not known.fleet.closed[row] for row in claim.rows)
            until = ENDLESS if claim.resident.serves else now + max(1, known.left.get(claim.unit, 1))
            if devices and model in futures:
                futures[model] = futures[model].held(devices, until)
        for job in jobs:
            if job.claim.candidate is not None and job.claim.candidate.serves:
                model = next((of for of in job.work if futures[of].free[0] >= job.devices[1]), -1)
                if model >= 0:
                    self.given[job.unit] = (job, 1, model)
                    futures[model] = futures[model].held(int(job.devices[1]), ENDLESS)
        return futures

    def _append(self, chains: Mapping[int, list[tuple[Filled | None, Future]]], job: Job) -> bool:
        """Admit a job if it can be on time with the devices that all others leave; return whether it can."""
        for model in job.work:
            future = chains[model][-1][1]
            filled = future.fill(job, model)
            if filled is not None:
                chains[model].append((filled, future.without(filled)))
                return True
        return False

    def _insert(self, chains: dict[int, list[tuple[Filled | None, Future]]], job: Job) -> bool:
        """Insert a job into the filling order, and fill the jobs with later deadlines again after it."""
        for model in job.work:
            chain = chains[model]
            place = next((place for place, (of, _) in enumerate(chain) if of and of.job.due > job.due), len(chain))
            made = chain[:place]
            for one in [job, *sorted((of.job for of, _ in chain[place:] if of), key=_by_due)]:
                filled = made[-1][1].fill(one, model)
                self._refills = max(0, self._refills - 1)
                if filled is None:
                    break
                made.append((filled, made[-1][1].without(filled)))
            else:
                chains[model] = made
                return True
        return False

    # --- left-over devices

    def _hand_out(self, jobs: Sequence[Job]) -> None:
        """Hand out the free devices: first the least size to jobs that have none, then steps by marginal return."""
        free = self._free
        for job in sorted((job for job in jobs if not self._level(job)), key=_by_turn):
            model = next((model for model in job.work if free[model] >= job.devices[1]), -1)
            if model >= 0:
                free[model] -= int(job.devices[1])
                self.given[job.unit] = (job, 1, model)
            elif not job.work and sum(free.values()) >= job.devices[1]:
                self._spread(job)
        steps: list[tuple[float, bool, int, str]] = []
        for unit in self.given:
            self._offer(steps, unit)
        while steps:
            *_, unit = heappop(steps)
            job, level, model = self.given[unit]
            more = int(job.devices[level + 1] - job.devices[level])
            if more <= free[model]:
                free[model] -= more
                self.given[unit] = (job, level + 1, model)
                self._offer(steps, unit)

    def _offer(self, steps: list[tuple[float, bool, int, str]], unit: str) -> None:
        """Put the next step of a job on the heap, if there is one."""
        job, level, model = self.given[unit]
        if model < 0 or not level or level + 1 == len(job.tasks) or not job.pays(level + 1, model):
            return
        devices, speeds = job.devices, job.speeds
        brings = (speeds[level + 1] - speeds[level]) / (devices[level + 1] - devices[level])
        beyond = job.tasks[level + 1] > len(job.claim.rows)
        heappush(steps, (-float(brings * devices[level] / speeds[level]), beyond, job.claim.ordinal, unit))

    def _spread(self, job: Job) -> None:
        """Place a job on devices of several models, since no single model has enough."""
        able = ability(self.view.fleet, job.claim.shape).models
        needed, could = int(job.devices[1]), [model for model in self._free if able[model]]
        if sum(self._free[model] for model in could) < needed:
            return
        for model in sorted(could, key=lambda of: (-self._free[of], of)):
            taken = min(needed, self._free[model])
            self._free[model] -= taken
            needed -= taken
        self.given[job.unit] = (job, 1, -1)

    def _level(self, job: Job) -> int:
        return self.given[job.unit][1] if job.unit in self.given else 0

    # --- rows

    def rows(self) -> dict[str, Rows]:
        """Return the rows of the tasks. Admitted jobs get their room, if necessary by moving others."""
        given = [of for of in self.given.values() if of[1]]
        given.sort(key=lambda of: (of[0].unit not in self.admitted, -of[0].devices[of[1]], of[0].claim.ordinal))
        best, fewest = self._pack(given, 0)
        for moves in (1, 2):
            if fewest:
                made, missing = self._pack(given, moves)
                if missing < fewest:
                    best, fewest = made, missing
        for job, _, _ in given:
            self.words.setdefault(job.unit, "best effort" + ", as its deadline is not kept" * (job.due > 0))
        return best

    def _pack(self, given: Sequence[tuple[Job, int, int]], moves: int) -> tuple[dict[str, Rows], int]:
        """Pack jobs of unchanged size without moving any (0), moving only best-effort work (1), or all (2). Return also
        how many admitted jobs have less than their planned size.
        """
        board = Board(self.view, [claim for claim in self.claimed if not self._known.keeps(claim)])
        wanted = {claim.unit: claim.rows for claim in self.claimed if self._known.keeps(claim)}
        later: list[tuple[Job, int, int]] = []
        missing = 0
        for job, level, model in given:
            stays = job.runs and len(job.claim.rows) == job.tasks[level]
            if stays and (not moves or (moves == 1 and job.unit in self.admitted)):
                board.put(job.claim, job.claim.rows)
                wanted[job.unit] = job.claim.rows
            else:
                later.append((job, level, model))
        for job, level, model in later:
            where = self._known.rows(model) if model >= 0 else self.view.fleet.closed == 0
            rows: Rows = ()
            for tasks in reversed(job.tasks[1 : level + 1]):
                rows = board.find(job.claim, tasks, where)
                if rows:
                    break
            missing += job.unit in self.admitted and len(rows) < job.tasks[level]
            if rows:
                board.put(job.claim, rows)
                wanted[job.unit] = rows
        board.fill_up(self.claimed, wanted, self._over)
        return wanted, missing


def _over_quota(view: Snapshot, claimed: Sequence[Claim]) -> set[str]:
    """Return the waiting units that exceed their tenant's quota together with other waiting units."""
    allowance, over = Allowance(view.quotas), set()
    for claim in claimed:
        if claim.candidate is not None and claim.candidate.tenant:
            if allowance.against(claim.candidate):
                over.add(claim.unit)
            else:
                allowance.take(claim.candidate, claim.shape, claim.least)
    return over


def _by_due(job: Job) -> tuple[int, int]:
    return job.due, job.claim.ordinal


def _by_turn(job: Job) -> tuple[bool, bool, int]:
    """Return a sort key: running jobs before waiting ones, then by arrival."""
    return not job.runs, not job.due, job.claim.ordinal


# --- nodes -----------------------------------------------------------------------------------------------------------


class Board:
    """The nodes without the given claims, which are put back one by one."""

    def __init__(self, view: Snapshot, claims: Sequence[Claim]) -> None:
        self.now = view.now
        self.draft = vacated(view, {claim.unit for claim in claims})
        self._left = int(self.draft.free[DEVICES].sum())  # free devices, including those of closed nodes

    def put(self, claim: Claim, rows: Rows) -> None:
        self._left -= claim.shape.gpus * len(rows)
        for row, tasks in Counter(rows).items():
            self.draft.keep(row, claim.unit, claim.shape, self.now, tasks)

    def holds(self, claim: Claim, rows: Rows) -> bool:
        """Return whether these rows have room for the claim."""
        room = self.draft.room_each(claim.shape)
        return all(room[row] >= tasks for row, tasks in Counter(rows).items())

    def find(self, claim: Claim, tasks: int, where: Bools) -> Rows:
        """Return rows for `tasks` tasks: the current ones as far as possible, then the fullest node that holds the
        rest, or else as few nodes as possible; empty if there is too little room.
        """
        if tasks * claim.shape.gpus > self._left:
            return ()
        mine: Rows = ()
        if claim.rows and not claim.stopping:
            ordered = [row for row, count in Counter(claim.rows).most_common() for _ in range(count)]
            stays = claim.resident is not None and claim.resident.resizes
            if (tasks <= len(ordered) or stays) and self.holds(claim, tuple(ordered[:tasks])):
                mine = tuple(ordered[:tasks])
        room = self.draft.within(claim.shape, np.where(where, self.draft.room_each(claim.shape), 0))
        for row, count in Counter(mine).items():
            room[row] = max(0, room[row] - count)
        rows = list(mine)
        for row in dict.fromkeys(mine):
            more = min(tasks - len(rows), int(room[row]))
            rows += [row] * more
            room[row] -= more
        while (left := tasks - len(rows)) > 0 and (most := int(room.max(initial=0))):
            row = int(np.where(room >= left, room, MOST_TASKS).argmin() if most >= left else room.argmax())
            rows += [row] * min(left, int(room[row]))
            room[row] = 0
        return tuple(rows) if len(rows) == tasks else ()

    def fill_up(self, claims: Sequence[Claim], wanted: dict[str, Rows], over: Collection[str]) -> None:
        """Give other waiting units their least size if it is free, in order of arrival."""
        where: Bools = self.draft.fleet.closed == 0
        for claim in claims:
            if claim.candidate is not None and claim.unit not in wanted and claim.unit not in over:
                rows = self.find(claim, claim.least, where)
                if rows:
                    wanted[claim.unit] = rows
                    self.put(claim, rows)


def _go_on(view: Snapshot, claimed: Sequence[Claim], plan: Mapping[str, Sequence[str]]) -> dict[str, Rows]:
    """Continue between two plans: running units stay, planned units are placed on their nodes, and other waiting units
    get their least size if it is free, in order of arrival.
    """
    rows_of, over = view.fleet.rows, _over_quota(view, claimed)
    board = Board(view, claimed)
    wanted: dict[str, Rows] = {}
    planned = {
        claim.unit: tuple(rows_of[name] for name in plan[claim.unit])
        for claim in claimed
        if claim.unit in plan and all(name in rows_of for name in plan[claim.unit])
    }
    for claim in claimed:
        if claim.rows and not claim.stopping and claim.unit not in planned:
            wanted[claim.unit] = claim.rows
            board.put(claim, claim.rows)
    for claim in claimed:
        if claim.unit in planned:
            runs = claim.rows and not claim.stopping
            rows = planned[claim.unit] if board.holds(claim, planned[claim.unit]) else claim.rows if runs else ()
            if rows:
                wanted[claim.unit] = rows
                board.put(claim, rows)
    board.fill_up(claimed, wanted, over)
    return wanted


__all__ = ["ElasticFlow"]

"""Estimates the probability that a job meets its deadlines: `python -m poise.control.deadlines HOME`, its own process.

It reads a `DeadlineQuestion` from stdin and writes a `DeadlineForecast` to stdout, both msgpack. Like `poise eta` it
reads the log, so a forecast costs the scheduler nothing. A job that is not in the log yet is simulated as if submitted
now. The process limits its own run time.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from poise.config import Home
from poise.control.forecast import Etas, Target, foresee
from poise.decoding import msgpack_decoder
from poise.drivers.logfile import read_home
from poise.drivers.plugins import policy_of
from poise.engine.host import load_ledger
from poise.engine.lookahead import Bounds, view_settings
from poise.errors import InputError
from poise.kernel.controller import Settings
from poise.kernel.ledger import JobState, Ledger
from poise.model.chances import DeadlineQuestion
from poise.model.events import JobSubmitted, decode_event
from poise.model.reports.questions import DeadlineForecast
from poise.policy.suites import SAFE_POLICY, ClusterPolicy, policy_named

FEWEST = 10
"""Minimum number of futures for an estimate."""

ROOM = 15
"""Number of futures that must fit into the time: more than the minimum, as the first may be the shortest."""

ENDS_AFTER = 30
"""Seconds after which this process is killed in any case; reading a log of millions of records takes a few."""


def answer(ledger: Ledger, policy: ClusterPolicy, settings: Settings, question: DeadlineQuestion) -> DeadlineForecast:
    """Simulate futures of the ledger, which is changed. The job's late tasks are not cancelled in them, because the
    question is when they would end.
    """
    now = max(question.now, ledger.now)
    job = _asked_about(ledger, question, now)
    units = [unit for unit in job.units if unit.spec.name in question.units and not unit.over]
    for unit in units:
        unit.spec = msgspec.structs.replace(unit.spec, if_late="run")
    due = [job.submitted + unit.spec.deadline for unit in units if unit.spec.deadline]
    told = DeadlineForecast(job=job.id, deadlines=len(set(due)), due=max(due, default=now) - now)
    if all(node.status != "up" for node in ledger.nodes.values()):
        return msgspec.structs.replace(told, unknown="nodes")
    target = Target(job, tuple(unit.id for unit in units), job.id)
    bounds = Bounds(question.futures, question.seconds, fewest=ROOM)
    try:
        seen = foresee(ledger, policy, settings, now, [target], bounds=bounds)
    except InputError:  # no simulated future was completed
        return msgspec.structs.replace(told, unknown="time")
    if seen.futures < min(FEWEST, question.futures):
        return msgspec.structs.replace(told, unknown="time")
    guessed = [unit for unit in job.units if not (unit.over or unit.spec.declared) and unit.spec.kind in seen.guesses]
    if guessed and "default" in seen.sources:
        return msgspec.structs.replace(told, unknown="run times")
    [eta] = seen.jobs
    return msgspec.structs.replace(
        told, chance=_chance(eta.on_time, seen), p50=eta.finish.p50, p90=eta.finish.p90, futures=seen.futures
    )


def _asked_about(ledger: Ledger, question: DeadlineQuestion, now: int) -> JobState:
    if question.job is None:
        return ledger.jobs[question.known]
    job = msgspec.structs.replace(question.job, id=ledger.jobs.next_id())  # other jobs may have taken its id
    ledger.apply(JobSubmitted(at=now, job=job))
    return ledger.jobs[job.id]


def _chance(on_time: int, seen: Etas) -> int:
    """Return the probability, in thousandths, that the next future is on time (Laplace's rule of succession)."""
    met = -(-on_time * seen.futures // 1000)
    return 1000 * (met + 1) // (seen.futures + 2)


def main(arguments: Sequence[str]) -> int:
    signal.alarm(ENDS_AFTER)
    with contextlib.suppress(OSError):
        os.nice(10)  # run at lower priority than scheduled work
    question = msgpack_decoder(DeadlineQuestion).decode(sys.stdin.buffer.read())
    with contextlib.closing(read_home(Home(Path(arguments[0])), decode_event)) as log:
        ledger = load_ledger(log)
    found = policy_of(ledger.leader.began, anyway=True) if ledger.leader.began is not None else ""
    policy = policy_named(SAFE_POLICY) if isinstance(found, str) else found
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(ledger, policy, view_settings(ledger), question)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


__all__ = ["answer", "main"]

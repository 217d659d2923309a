"""Answers without a running control plane: the same reports, made from the log as it lies on disk."""

from collections.abc import Iterator

from poise.config import Home
from poise.drivers.devices import probe_node
from poise.drivers.security import ensure_home
from poise.drivers.sqlite import LogReader
from poise.errors import NotFound
from poise.kernel.explain import job_report, node_report
from poise.kernel.ledger import JobState, Ledger, NodeState
from poise.model.events import Event, decode_event
from poise.model.reports import JobReport, LogLine, NodeReport


def load(home: Home) -> Ledger:
    """The ledger as the log has it; an empty one where there is no log."""
    if not home.log.exists():
        return Ledger()
    reader: LogReader[Event] = LogReader(home.log, decode_event)
    try:
        checkpoint = reader.latest_checkpoint()
        ledger = Ledger.decode(checkpoint.state) if checkpoint else Ledger()
        for _, event in reader.read(ledger.revision):
            ledger.apply(event)
        return ledger
    finally:
        reader.close()


def find(ledger: Ledger, name: str) -> JobState:
    job = ledger.find_job(name)
    if job is None:
        raise NotFound(f"there is no job `{name}` in the log", field="job", have=name, hint="`poise ls --all`")
    return job


def jobs(home: Home, *, everything: bool) -> list[JobReport]:
    ledger = load(home)
    shown = ledger.jobs.values() if everything else ledger.recent_jobs(20)
    return [job_report(ledger, job, ledger.now, tasks=False) for job in shown]


def job(home: Home, name: str) -> JobReport:
    ledger = load(home)
    return job_report(ledger, find(ledger, name), ledger.now, tasks=True)


def nodes(home: Home) -> list[NodeReport]:
    """What the log knows, or else this machine as it would join."""
    ledger = load(home)
    ensure_home(home)  # an identity for this machine is kept there
    states = list(ledger.nodes.values()) or [NodeState(node=probe_node("this machine", home.node))]
    return [node_report(state) for state in states]


def logs(home: Home, name: str, task: str) -> Iterator[LogLine]:
    """What a job had written when the control plane stopped."""
    import asyncio

    from poise.drivers.joblogs import follow_job

    ledger = load(home)
    found = find(ledger, name)

    async def gather() -> list[LogLine]:
        return [line async for line in follow_job(home.logs, lambda: ledger, found.id, task, follow=False)]

    yield from asyncio.run(gather())

"""Places of the running tasks of a job, for a gateway that routes requests to them."""

import zlib
from collections.abc import Callable, Iterator

import msgspec

from poise.kernel.explain import task_status
from poise.kernel.ledger import JobState
from poise.model.reports.services import Endpoint, EndpointsReport


def endpoints(job: JobState | None, address_of: Callable[[str], str | None]) -> EndpointsReport:
    """Return the tasks that run and are not asked to end; of a gang, its first member. `address_of` returns the address
    of a node, None if the node has not connected since this control plane leads.
    """
    found = [] if job is None or job.ended else list(_endpoints(job, address_of))
    told = tuple(one for one in found if one is not None)
    known = f"{zlib.crc32(msgspec.json.encode(told)):08x}"
    return EndpointsReport(known=known, complete=len(told) == len(found), endpoints=told)


def _endpoints(job: JobState, address_of: Callable[[str], str | None]) -> Iterator[Endpoint | None]:
    """Yield the endpoints; None for one whose address is unknown."""
    for unit in job.existing:
        for index in unit.members[:1] if unit.spec.least else (0,):
            task, spec = unit.tasks[index], unit.spec.tasks[index]
            if task_status(job, unit, task) != "running":
                continue
            name, epoch, address = f"{job.id}.{spec.name}", unit.epoch_of(index), address_of(task.node)
            yield (
                None
                if address is None
                else Endpoint(task=name, epoch=epoch, part=spec.part, node=task.node, address=address)
            )


__all__ = ["endpoints"]

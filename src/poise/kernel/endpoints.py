"""Places of the running tasks of a job, for a gateway that routes requests to them."""

import zlib
from collections.abc import Callable, Iterator

import msgspec

from poise.kernel.explain import task_status
from poise.kernel.ledger import JobState
from poise.model.reports import Endpoint, EndpointsReport


def endpoints(job: JobState | None, address_of: Callable[[str], str]) -> EndpointsReport:
    """Return the tasks that run and are not asked to end; of a gang, its first member. `address_of` returns the address
    of a node.
    """
    found = () if job is None or job.ended else tuple(_endpoints(job, address_of))
    return EndpointsReport(known=f"{zlib.crc32(msgspec.json.encode(found)):08x}", endpoints=found)


def _endpoints(job: JobState, address_of: Callable[[str], str]) -> Iterator[Endpoint]:
    for unit in job.existing:
        for index in unit.members[:1] if unit.spec.least else (0,):
            task, spec = unit.tasks[index], unit.spec.tasks[index]
            if task_status(job, unit, task) == "running":
                yield Endpoint(
                    task=f"{job.id}.{spec.name}",
                    epoch=unit.epoch_of(index),
                    part=spec.part,
                    node=task.node,
                    address=address_of(task.node),
                )


__all__ = ["endpoints"]

"""Question about the probability that a job meets its deadlines."""

import msgspec

from poise.model.jobs import Job


class DeadlineQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for the probability that these units (names) of a job meet their deadlines. The job is in the log under
    the id `known`, or it has not been submitted yet. `now` is an instant of the log; simulate for at most `seconds`.
    """

    units: tuple[str, ...]
    now: int
    known: str = ""
    job: Job | None = None
    futures: int = 100
    seconds: float = 2.0

"""The note of a submission about the probability that its deadline is met."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poise.client import Client, deadlines_in
from poise.errors import PoiseError

if TYPE_CHECKING:  # only for type names
    from poise.model.reports.questions import DeadlineForecast


def has_deadline(spec: Mapping[str, Any]) -> bool:
    return next(deadlines_in(spec), None) is not None


def forecast_of(client: Client, job: str) -> "DeadlineForecast | None":
    """Return the forecast of an accepted job; None if there is none yet, or the job is over. An error does not affect
    the job.
    """
    try:
        return client.deadline(job)
    except (PoiseError, OSError):
        return None

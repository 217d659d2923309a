"""What a submission prints about its deadline: how likely it is met."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poise.client import Client, deadlines_in
from poise.errors import PoiseError

if TYPE_CHECKING:  # only for their names
    from poise.model.chances import DeadlineForecast


def has_deadline(spec: Mapping[str, Any]) -> bool:
    return next(deadlines_in(spec), None) is not None


def forecast_of(client: Client, job: str) -> "DeadlineForecast | None":
    """The forecast of an accepted job; None where there is none to be had now, or the job is over by now. The job is
    accepted in any case.
    """
    try:
        return client.deadline(job)
    except (PoiseError, OSError):
        return None

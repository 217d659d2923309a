"""What an agent makes of the reports of its attempts when they end."""

from pathlib import Path

import msgspec
import pytest

from poise.drivers.tellings import Tellings
from poise.model.jobs import Ending, Outcome
from poise.model.messages import Attempt, Ended
from poise.model.training import Training

ONE = Attempt("j1.main[0]", 1)


def as_told(folder: Path, ending: Ending, said: Training | None) -> Ending:
    if said is not None:
        (folder / "j1.main[0].1.report").write_bytes(msgspec.json.encode(said))
    return Tellings(f"{folder}/").last_word(Ended(attempt=ONE, ending=ending)).ending


@pytest.mark.parametrize(
    ("outcome", "code", "reports", "becomes"),
    [
        ("failed", 143, True, "killed"),
        ("failed", 143, False, "failed"),
        ("failed", 1, True, "failed"),
        ("hung", 143, True, "hung"),
        ("stopped", 143, True, "stopped"),
    ],
)
def test_training_that_somebody_asked_to_end_is_retried_as_if_it_had_been_killed(
    tmp_path: Path, outcome: Outcome, code: int, reports: bool, becomes: Outcome
) -> None:
    """In a gang all members end like this, and who ends first decides: so a member that hung is retried too."""
    said = Training(step=7, safe=400_000) if reports else None
    found = as_told(tmp_path, Ending(outcome=outcome, code=code), said)
    assert (found.outcome, found.code, found.progress) == (becomes, code, 400_000 if reports else -1)
    assert bool(found.note) == (becomes == "killed")


def test_what_was_done_needs_no_last_word(tmp_path: Path) -> None:
    assert as_told(tmp_path, Ending(outcome="done"), Training(step=7, safe=5)) == Ending(outcome="done")

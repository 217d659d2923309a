"""`--at`: the state at a past moment, from the log."""

import json
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from poise.cli.main import main
from poise.cli.moments import time_of
from poise.config import Home
from poise.drivers.logfile import read_home
from poise.drivers.past import Moment, state_at
from poise.drivers.sqlite import SqliteStore
from poise.errors import NotFound, SpecError
from poise.kernel.ledger import Ledger
from poise.model.events import Event, decode_event, encode_event
from poise.testing import WALL, World
from poise.units import SECOND


def written(home: Home, log: list[Event], *, checkpoints: tuple[int, ...] = (), keep: int = 10**9) -> None:
    home.root.mkdir(exist_ok=True)
    store = SqliteStore(home.log, encode_event, decode_event, keep=keep)
    ledger, begin = Ledger(), 0
    for revision in (*checkpoints, len(log)):
        store.append(log[begin:revision], expected=begin)
        for event in log[begin:revision]:
            ledger.apply(event)
        if revision in checkpoints:
            store.checkpoint(revision, ledger.compressed())
        begin = revision
    store.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path / "home")
    monkeypatch.setenv("POISE_HOME", str(home.root))
    return home


def two_jobs() -> World:
    """The first runs from second 0 to 10, the second is submitted in second 20 and still runs in second 30."""
    world = World().nodes(1, cpu=2).job("first").round().start("first").after("10s").finish("first", run="10s")
    return world.after("10s").job("second").round().start("second").after("10s")


def test_every_revision_is_as_it_was_whatever_it_is_built_from(home: Home) -> None:
    world = two_jobs()
    written(home, world.log, checkpoints=(4, 9))
    ledger = Ledger()
    with closing(read_home(home, decode_event)) as log:
        for revision, event in enumerate(world.log, start=1):
            ledger.apply(event)
            then = state_at(log, Moment(revision=revision))
            assert (then.ledger.encode(), then.now) == (ledger.encode(), event.at)


def test_a_time_is_the_state_after_what_had_happened_by_then(home: Home) -> None:
    world = two_jobs()
    written(home, world.log, checkpoints=(4, 9))
    with closing(read_home(home, decode_event)) as log:
        then = state_at(log, Moment(WALL + 5))
        assert [job.id for job in then.ledger.jobs.values()] == ["j1"]
        assert then.now == 6 * SECOND and then.wall == WALL + 5  # the log of a world begins at its first second
        assert state_at(log, Moment(WALL + 25)).ledger.jobs["j2"].units[0].status == "active"
        assert state_at(log, Moment(WALL + 10**6)).ledger.encode() == world.ledger.encode()
        with pytest.raises(NotFound, match="nothing was recorded yet"):
            state_at(log, Moment(WALL - 1))
        with pytest.raises(NotFound, match="has not reached"):
            state_at(log, Moment(revision=len(world.log) + 1))


def test_a_moment_whose_records_were_removed_is_refused_with_the_first_that_is_left(home: Home) -> None:
    world = two_jobs()
    written(home, world.log, checkpoints=(8, 9, 10, 11), keep=1)
    with closing(read_home(home, decode_event)) as log:
        assert log.first_revision() > 1
        kept = log.first_revision() - 1  # the state of the checkpoint
        assert state_at(log, Moment(revision=kept)).ledger.revision == kept
        for moment in (Moment(revision=2), Moment(WALL + 1)):
            with pytest.raises(NotFound, match="no longer has") as refused:
                state_at(log, moment)
            assert f"revision {kept} or later" in refused.value.record.need


def test_commands_show_a_past_moment(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    written(home, two_jobs().log)
    at = datetime.fromtimestamp(WALL + 5).astimezone().isoformat()

    def told(*words: str) -> Any:
        assert main([*words, "--at", at, "--json"]) == 0
        shown = capsys.readouterr()
        assert f"as of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(WALL + 5))}" in shown.err
        return json.loads(shown.out)

    job = told("ls")[0]
    assert (job["id"], job["status"], job["elapsed"]) == ("j1", "running", 5 * SECOND)
    assert told("show", "first")["status"] == "running"
    assert told("explain", "first")["status"] == "running"
    assert [node["running"] for node in told("nodes")] == [1]
    status = told("status")
    assert (status["unfinished"], status["up"]) == (1, False)
    assert main(["ls", "--json"]) == 0
    assert [one["status"] for one in json.loads(capsys.readouterr().out)] == ["done", "running"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls --at 2100-01-01", "still to come"),
        ("ls --at yesterday", "need    14:30, "),
        ("ls --at 25:00", "cannot be read"),
        ("ls --at 1 --watch", "exclude each other"),
        ("nodes --at 1 --fleet f.yaml", "exclude each other"),
        ("explain j1 --at 1 --unblock", "excludes"),
        ("show j2 --at 5", "no job"),
        ("status --at 1000000", "has not reached"),
    ],
)
def test_what_cannot_be_shown_is_refused(home: Home, words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    written(home, two_jobs().log)
    assert main(words.split()) == 1
    assert said in capsys.readouterr().err


def test_times_as_they_are_typed() -> None:
    now = time.time()
    assert now - 24 * 3600 <= time_of("0:00", "--at") <= now
    assert time.localtime(time_of("07:05:09", "--at"))[3:6] == (7, 5, 9)
    assert time_of("2026-12-01T12:00:00Z", "--since") == 1796126400
    assert time.localtime(time_of("2026-12-01 12:00", "--since"))[3:5] == (12, 0)
    assert abs(time.time() - 300 - time_of("5m", "--since")) < 60
    with pytest.raises(SpecError) as refused:
        time_of("2026-13-01", "--since")
    assert refused.value.record.field == "--since"

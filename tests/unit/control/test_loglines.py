"""New lines of running work are found in what it writes, and join an incident."""

import asyncio
from pathlib import Path

import pytest

from poise.control import loglines
from poise.control.loglines import MOST_BYTES, MOST_LINES, Loglines
from poise.drivers.places import log_paths
from poise.kernel.ledger import attempt_of
from poise.kernel.messages import Saw
from poise.kernel.templates import SETTLED
from poise.model.events import Noticed
from poise.model.tenants import Role
from poise.testing import World
from unit.control.desk import Desk


class Writing:
    """Jobs of one program that run and write."""

    def __init__(self, folder: Path, jobs: int = 1) -> None:
        world = World().nodes(4)
        for number in range(jobs):
            world.job(f"w{number}", tenant="ann", **{"class": "train"}).round().start(f"w{number}")
        self.desk, self.world = Desk(world, folder), world
        vars(self.desk.plane)["post"] = lambda saw: world.say(saw) if isinstance(saw, Saw) else None
        self.logs = self.desk.home.logs
        self.loglines = Loglines(self.desk.plane, self.logs)

    def path(self, name: str = "w0", *, err: bool = True) -> Path:
        attempt = attempt_of(self.world.state(name).units[0], 0)
        path = log_paths(self.logs, attempt)[err]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, text: str, name: str = "w0", *, err: bool = True) -> None:
        with self.path(name, err=err).open("a") as file:
            file.write(text)

    def look(self) -> list[str]:
        """What is noticed."""
        before = len(self.world.log)
        asyncio.run(self.loglines.look())
        noticed = [event for event in self.world.log[before:] if isinstance(event, Noticed)]
        assert {event.kind for event in noticed} <= {"new-template"}
        return [event.text for event in noticed]

    def settle(self) -> None:
        """It is known what is usual."""
        for start in range(0, SETTLED + 1, MOST_LINES // 2):
            for number in range(start, start + MOST_LINES // 2):
                self.write(f"step {number}: loss {number / 7:.3f}\n")
            assert self.look() == []


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path)


def test_a_line_that_is_new_for_its_program_is_noticed_once(writing: Writing) -> None:
    writing.settle()
    writing.write("NCCL WARN \x1b[mconnection to 10.0.0.7 lost\nstep 9: loss 1.0\n")
    task = f"{writing.world.state('w0').id}.main"
    assert writing.look() == [f"{task} writes a line that is new for ann:train: NCCL WARN [mconnection to <*> lost"]
    writing.write("NCCL WARN \x1b[mconnection to 10.0.0.9 lost\n")
    assert writing.look() == []


def test_what_it_prints_counts_too_and_half_a_line_waits_for_the_other_half(writing: Writing) -> None:
    writing.settle()
    writing.write("CUDA err", err=False)
    assert writing.look() == []
    writing.write("or: out of memory\n", err=False)
    [told] = writing.look()
    assert told.endswith(": CUDA error: out of memory")


def test_of_an_output_that_has_grown_much_the_end_is_read_by_whole_lines(writing: Writing) -> None:
    writing.settle()
    writing.write("a line that nobody reads\n" + f"step {'9' * 200}: loss 1.0\n" * (MOST_BYTES // 100))
    assert writing.look() == [], "not even the rest of a line is taken for a line"


def test_one_that_begins_again_and_one_that_is_gone(writing: Writing) -> None:
    writing.settle()
    writing.path().write_text("")
    assert writing.look() == []
    writing.write("it begins again\n")
    assert len(writing.look()) == 1
    writing.path().unlink()
    assert writing.look() == []


def test_all_that_run_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loglines, "MOST_UNITS", 2)
    writing = Writing(tmp_path, jobs=4)
    writing.settle()
    writing.settle()
    for name in ("w1", "w3"):
        writing.write(f"error of {name}\n" if name == "w1" else "another line\n", name)
    told = [text for _ in range(2) for text in writing.look()]
    assert len(told) == 1, "after a new line, a program has to settle again"


def test_others_see_nothing_of_it(writing: Writing) -> None:
    writing.desk.token("ann", "ann", Role.VIEWER)
    writing.desk.token("bob", "bob", Role.VIEWER)
    writing.settle()
    writing.write("the merger is off\n")
    assert writing.look() != []
    seen = {
        who: b"merger" in writing.desk.call("GET", "/v1/events?after=0&follow=false", who=who).body
        for who in ("ann", "bob")
    }
    assert seen == {"ann": True, "bob": False}
    writing.world.lose(writing.world.state("w0").units[0].tasks[0].node).after("60s")
    [to_bob] = writing.desk.call("GET", "/v1/incidents", who="bob").value
    assert "new-template" in to_bob["symptoms"] and "merger" not in str(to_bob)
    [to_ann] = writing.desk.call("GET", "/v1/incidents", who="ann").value
    assert "merger" in str(to_ann)

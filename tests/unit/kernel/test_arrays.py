"""A job of very many parts is an array: only the parts that may start soon exist."""

from random import Random

import pytest

from poise.errors import Conflict, NotFound
from poise.kernel.explain import exit_code
from poise.kernel.find import find, found_report
from poise.kernel.ledger import Ledger, arrays
from poise.kernel.results import Results, gathered
from poise.model.reports.jobs import JobReport, PartReport
from poise.testing import World, replay

MANY = 10_001


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "WINDOW", 4)


def array(**fields: object) -> World:
    """Three parts of very many run."""
    return World().nodes(1, cpu=3).job("j", cpu=1, **{"parts": MANY, **fields}).round()


def existing(world: World) -> dict[str, str]:
    return {unit.spec.name: unit.status for unit in world.state("j").units}


def counts(world: World) -> dict[str, int]:
    return shown(world).counts


def shown(world: World, name: str = "j") -> JobReport:
    return found_report(world.ledger, find(world.ledger, name), world.now)


def rows(world: World) -> list[PartReport]:
    job = world.state("j")
    assert job.array is not None
    return list(gathered(Results(world.ledger, job, job.array), enumerate(world.log, 1)))


def test_parts_exist_when_they_may_start_soon() -> None:
    world = array()
    assert existing(world) == {f"main[{part}]": "active" if part < 3 else "pending" for part in range(7)}
    world.finish("j.main[1]").round()
    assert list(existing(world)) == [f"main[{part}]" for part in (0, 2, 3, 4, 5, 6, 7)]
    assert counts(world) == {"done": 1, "waiting": MANY - 8, "placed": 3, "pending": 4}
    assert world.status("j") == "placed"


def test_its_parts_do_not_overtake_others_as_a_critical_path_would() -> None:
    world = array()
    candidate = world.ledger.shown.candidate(world.unit("j.main[5]"))
    assert not candidate.critical
    assert not shown(world, "j.main[5]").tasks[0].critical


def test_a_limit_of_parts_at_once_is_a_limit_of_parts_that_exist() -> None:
    world = array(at_most=2)
    assert existing(world) == {"main[0]": "active", "main[1]": "active"}
    world.finish("j.main[0]", outcome="failed", code=7).round()
    assert existing(world) == {"main[1]": "active", "main[2]": "active"}


def test_a_part_that_is_retried_keeps_its_place() -> None:
    world = array(at_most=1, retry={"limit": 1, "when": ["failed"]})
    world.finish("j.main[0]", outcome="failed").round()
    assert existing(world) == {"main[0]": "pending"}
    world.after("2s").round().finish("j.main[0]").round()
    assert existing(world) == {"main[1]": "active"}
    assert rows(world)[0].epoch == 2


def test_values_of_a_sweep_are_made_with_the_part() -> None:
    world = (
        World()
        .nodes(1, cpu=3)
        .submit({"name": "j", "run": ["x", "{lr}", "{seed}"], "sweep": {"lr": [0.1, 0.2], "seed": f"1..{MANY}:2"}})
    )
    world.round()
    assert world.unit("j.main[2]").spec.tasks[0].argv == ("x", "0.1", "5")
    last = shown(world, f"j.main[{MANY}]").tasks[0]
    assert (last.sweep, last.status) == ({"lr": "0.2", "seed": str(MANY)}, "waiting")


def test_what_does_not_exist_is_known_all_the_same() -> None:
    world = array(at_most=1)
    world.finish("j.main[0]", outcome="failed", code=7).round().finish("j.main[1]").round()
    told = [shown(world, f"j.main[{part}]") for part in (0, 1, 2, 3)]
    assert [one.status for one in told] == ["failed", "done", "placed", "waiting"]
    assert [one.exit_code for one in told] == [7, 0, None, None]
    with pytest.raises(NotFound, match=rf"no task `main\[{MANY}\]`"):
        find(world.ledger, f"j.main[{MANY}]")
    hints = {
        "5": "did you mean `main[5]`?",
        str(MANY): "`poise show j1` lists its tasks",
        "mian": "did you mean `main`?",
    }
    for name, hint in hints.items():
        with pytest.raises(NotFound) as caught:
            find(world.ledger, f"j.{name}")
        assert (caught.value.record.have, caught.value.record.hint) == (f"main[0] to main[{MANY - 1}]", hint)
    with pytest.raises(Conflict, match="when it may start soon"):
        world.cancel("j.main[3]")
        raise world.replies[-1].error or AssertionError("accepted")


def test_it_is_the_same_after_a_restart_and_in_a_replay() -> None:
    world = array(at_most=3)
    world.finish("j.main[1]", outcome="failed", code=3).round().finish("j.main[0]").round()
    state = world.ledger.encode()
    assert replay(world.log).encode() == state
    assert Ledger.decode(state).encode() == state
    world.restart(from_checkpoint=True).finish("j.main[2]").round()
    assert list(existing(world)) == ["main[3]", "main[4]", "main[5]"]


def test_cancelled_it_starts_nothing_more() -> None:
    world = array(at_most=2).finish("j.main[0]").round().start("j.main[1]", "j.main[2]").cancel("j").round()
    assert world.status("j") == "cancelled"
    assert counts(world) == {"done": 1, "cancelled": MANY - 1}
    assert exit_code(world.state("j")) == 130
    assert len(rows(world)) == MANY


def test_after_a_job_that_failed_all_of_it_is_skipped() -> None:
    world = World().nodes(1, cpu=3).job("first").job("j", parts=MANY, after=["first"]).round()
    assert world.status("j") == "waiting"
    world.finish("first.main", outcome="failed").round()
    assert (world.status("j"), counts(world)) == ("skipped", {"skipped": MANY})


def test_on_hold_it_waits_and_released_it_goes_on() -> None:
    world = array(at_most=2).hold("j").finish("j.main[0]").round()
    assert existing(world) == {"main[1]": "active", "main[2]": "waiting"}
    world.hold("j", on=False).round()
    assert existing(world) == {"main[1]": "active", "main[2]": "active"}


def test_a_change_applies_to_the_parts_to_come() -> None:
    world = array(at_most=1).change("j", priority="high").round().finish("j.main[0]").round()
    assert world.unit("j.main[1]").spec.priority.name == "HIGH"


@pytest.fixture
def _from_four_parts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.model.spec.MAX_TASKS", 3)


@pytest.mark.usefixtures("_from_four_parts_on")
def test_done_at_its_end_and_kept_in_little() -> None:
    world = array(parts=9).finish_all()
    assert (world.status("j"), counts(world)) == ("done", {"done": 9})
    assert len(world.state("j").units) == 1
    assert exit_code(world.state("j")) == 0
    assert [(row.task, row.status, row.node) for row in rows(world)][:1] == [("main[0]", "done", "n1")]
    assert {row.task for row in rows(world)} == {f"main[{part}]" for part in range(9)}


@pytest.mark.usefixtures("_from_four_parts_on")
def test_so_many_may_fail() -> None:
    world = array(parts=20, at_most=1, **{"allow-failed": "10%"}, merge="tell")
    world.finish("j.main[0]", outcome="failed").round().finish("j.main[1]", outcome="failed").round()
    for part in range(2, 20):
        world.finish(f"j.main[{part}]").round()
    assert existing(world) == {"main.merge": "active"}
    world.finish("j.main.merge").round()
    assert (world.status("j"), exit_code(world.state("j"))) == ("done", 0)


@pytest.mark.usefixtures("_from_four_parts_on")
def test_more_failures_fail_it_and_its_merge_is_skipped() -> None:
    world = array(parts=5, at_most=1, **{"allow-failed": 1}, merge="tell")
    for part in range(5):
        world.finish(f"j.main[{part}]", outcome="failed" if part < 2 else "done", code=5 if part < 2 else 0).round()
    assert (world.status("j"), exit_code(world.state("j"))) == ("failed", 5)
    assert counts(world) == {"done": 3, "failed": 2, "skipped": 1}


@pytest.mark.usefixtures("_from_four_parts_on")
def test_a_retry_runs_what_was_not_done() -> None:
    world = array(parts=9, at_most=1)
    for part in range(9):
        world.finish(f"j.main[{part}]", outcome="failed" if part in (2, 3, 7) else "done", code=1).round()
    assert shown(world).array is not None
    assert shown(world).array.failed == "2-3, 7"  # type: ignore[union-attr]
    world.retry("j1").round()
    assert world.status("j2.main[2]") == "active"
    world.finish_all()
    assert {row.task for row in rows(world)} == {"main[2]", "main[3]", "main[7]"}
    assert world.status("j2") == "done"


def test_a_small_job_may_have_failures_too() -> None:
    world = World().nodes(1, cpu=4).job("j", cpu=1, parts=4, **{"allow-failed": 1}, merge="tell").round()
    world.finish("j.main[0]", outcome="failed", code=3).finish("j.main[1]", "j.main[2]", "j.main[3]").round()
    world.finish("j.main.merge").round()
    assert (world.status("j"), exit_code(world.state("j"))) == ("done", 0)


@pytest.mark.usefixtures("_from_four_parts_on")
@pytest.mark.parametrize("seed", range(8))
def test_every_part_ends_once_whatever_happens(seed: int) -> None:
    """Failures, retries, lost nodes and restarts."""
    draw = Random(seed)  # noqa: S311 — a test draws by its seed
    world = World().nodes(3, cpu=2)
    world.job("j", cpu=1, parts=40, at_most=draw.choice([0, 3]), retry={"limit": 1, "when": ["failed", "lost"]})
    world.round()
    for _ in range(300):
        attempts = sorted(attempt for held in world.held.values() for attempt in held)
        if world.state("j").ended:
            break
        if draw.random() < 0.03:
            name = draw.choice(sorted(world.connected))
            world.lose(name).connect(name)
        elif draw.random() < 0.05:
            world.restart(from_checkpoint=draw.random() < 0.5)
        elif attempts:
            task = draw.choice(attempts).task
            found = world.ledger.jobs.task(task)
            if found is not None and found[1].active:
                world.finish(task, outcome=draw.choice(["done", "done", "done", "failed"]), code=1)
        world.after("1s")
    world.finish_all()
    assert sum(counts(world).values()) == 40
    assert counts(world).keys() <= {"done", "failed"}
    assert replay(world.log).encode() == world.ledger.encode()

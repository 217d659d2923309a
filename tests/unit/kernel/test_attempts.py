"""Attempts that end badly, and what is done differently after them: out of memory, faults of devices, stragglers."""

from typing import Any

from poise.kernel.explain import job_report, question
from poise.testing import World

OFTEN: dict[str, Any] = {"limit": 9, "backoff": "0.1s", "when": ["oom", "killed", "lost"]}
GIB = 1 << 30


def story(world: World, job: str) -> list[str]:
    state = world.state(job)
    return [told.text for told in question(world.ledger, state, world.controller.snapshot(world.now)).story]


def test_what_runs_out_of_memory_is_tried_again_twice_and_no_more() -> None:
    world = World().nodes(1).job("a", memory="2GiB", retry=OFTEN)
    for _ in range(2):
        world.after("2s").start("a.main").finish("a", outcome="oom", peak=2 * GIB + (100 << 20), limit=2 * GIB)
        assert world.status("a") == "pending"
    assert "attempt 2 of main on n1 ran out of memory: peak 2.1 GiB of 2 GiB; tried again 2 of 2, 1.0 s in" in story(
        world, "a"
    )
    world.after("2s").finish("a", outcome="oom", peak=3 * GIB, limit=2 * GIB)
    assert world.status("a") == "failed"
    [task] = job_report(world.ledger, world.state("a"), world.now, tasks=True).tasks
    assert [past.note for past in task.attempts] == [
        "peak 2.1 GiB of 2 GiB; tried again 1 of 2",
        "peak 2.1 GiB of 2 GiB; tried again 2 of 2",
    ]
    assert story(world, "a")[-2].startswith("main ran out of memory: peak 3 GiB of 2 GiB, 1.0 s in")


def test_other_endings_do_not_count_as_out_of_memory() -> None:
    world = World().nodes(1).job("a", memory="2GiB", retry=OFTEN)
    for outcome in ("oom", "killed", "killed", "oom", "killed"):
        world.after("2s").finish("a", outcome=outcome)
        assert world.status("a") == "pending"


def test_an_elastic_gang_comes_back_smaller_after_it_ran_out_of_memory() -> None:
    world = World().nodes(1, cpu=8).job("g", workers="2..8", memory="512MiB", retry=OFTEN).round()
    sizes = [len(world.where("g"))]
    for _ in range(2):
        world.start(*(f"g.main[{rank}]" for rank in range(sizes[-1])))
        world.finish("g.main[0]", outcome="oom", limit=GIB // 2, peak=GIB).after("2s")
        sizes.append(len(world.where("g")))
    assert sizes == [8, 4, 2]
    assert world.after("1h").unit("g").size == 2, "it does not grow into what was too much"
    assert any(text.startswith("attempt 3 of main placed on n1 with 2 of 8 tasks, since") for text in story(world, "g"))
    world.restart().finish("g.main[0]", outcome="killed").after("2s")
    assert len(world.where("g")) == 2


def test_an_elastic_gang_may_shrink_to_one() -> None:
    world = World().nodes(1, cpu=2).job("g", workers="1..2", retry=OFTEN).round().finish("g.main[0]", outcome="oom")
    assert len(world.after("2s").where("g")) == 1


def test_the_artifact_that_asks_for_less_memory_goes_first_after_it_ran_out() -> None:
    artifacts = {
        "cuda": {"run": "a", "resources": {"memory": "4GiB"}},
        "rocm": {"run": "b", "resources": {"memory": "1GiB"}},
        "cpu": {"run": "c", "resources": {"memory": "0"}},
    }
    for name in ("cuda", "rocm"):
        artifacts[name]["resources"] |= {"backend": "cpu"}  # type: ignore[operator]
    world = World().nodes(1).submit({"name": "a", "artifacts": artifacts, "retry": OFTEN}).round()
    assert world.unit("a").variant == 0
    world.finish("a", outcome="oom", limit=4 * GIB, peak=4 * GIB).after("2s")
    assert world.unit("a").variant == 1
    world.finish("a", outcome="oom", limit=GIB, peak=GIB).after("2s")
    assert world.unit("a").variant == 0, "nothing asks for less: as at first"

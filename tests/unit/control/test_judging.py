"""Policies in shadow are judged for rules by the figures that `poise promote` asks for; a wrong name has a hint."""

from pathlib import Path

from poise.config import Home
from poise.control.judging import judged
from poise.drivers.worlds import write_told
from poise.model.worlds import Row, Window, WorldsTold, WorldTold
from poise.testing import World
from poise.units import MINUTE
from unit.control.desk import Desk


def told(home: Home, factor: float, count: int = 400) -> None:
    """Results of a fleet in which jobs take `factor` times as long under the policy in shadow."""
    pairs = tuple((row(10 + place % 7), row((10 + place % 7) * factor)) for place in range(count))
    window = Window(since=0.0, hours=24.0, capacity=0.0, pairs=pairs)
    worlds = {"srtf": WorldTold(windows=(window,))}
    home.shadow.mkdir(parents=True, exist_ok=True)
    write_told(home, WorldsTold(revision=1, live="poise", at=1.0, written=1.0, late=0.0, cpu=0.0, worlds=worlds))


def row(minutes: float) -> Row:
    return Row(time=round(minutes * MINUTE), wait=0, late=0, preempted=0, service=0, ended=1)


def test_only_a_policy_whose_interval_excludes_no_better_is_better(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert judged(home, ["srtf"], 2.0) == {}, "nothing is known yet"
    told(home, 0.8)
    [(label, why)] = judged(home, ["srtf", "las"], 2.0).items()
    assert label == "srtf"
    assert why.startswith("mean completion -20.0 % (")
    assert why.endswith("of 400 jobs in shadow")
    told(home, 1.0)
    assert judged(home, ["srtf"], 2.0) == {}
    told(home, 0.8, count=5)
    assert judged(home, ["srtf"], 2.0) == {}, "too few jobs"
    assert judged(home, [], 2.0) == {}


def test_the_hint_for_a_policy_that_is_not_in_shadow_names_one_that_exists() -> None:
    desk = Desk(World(check=False).nodes(1))
    for name, hint in (("srtf", "`poise shadow start srtf`"), ("nosuch", "`poise shadow ls`")):
        assert desk.call("DELETE", f"/v1/shadow/{name}").value["error"]["hint"] == hint

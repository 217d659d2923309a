from poise.kernel.watch import Change, Watch
from poise.model.events import Triggered
from poise.model.load import Load
from poise.model.triggers import Triggers
from poise.testing import World
from poise.units import MILLISECOND, SECOND

BUSY = Load(cpu=900, load1=1500)
MEDIUM = Load(cpu=700, load1=900)


def test_a_level_is_taken_for_what_it_is_once_it_has_stayed() -> None:
    watch = Watch(Triggers(settles=5 * SECOND, hot_above=1001))
    watch.load("n1", MEDIUM, 10 * SECOND)
    assert watch.due() == 15 * SECOND
    assert watch.settled(14 * SECOND) == []
    assert watch.settled(15 * SECOND) == [Change("n1", 1, False)]
    watch.load("n1", Load(), 20 * SECOND)
    watch.load("n1", MEDIUM, 22 * SECOND)  # it was a dip
    assert watch.settled(30 * SECOND) == []


def test_a_node_is_hot_after_a_window_above_and_cools_after_one_below_a_lower_threshold() -> None:
    watch = Watch(Triggers(settles=10**18, hot_above=800, cool_below=700, hot_for=30 * SECOND))
    watch.load("n1", Load(cpu=850), 0 * SECOND + 1)
    watch.load("n1", Load(cpu=810), 29 * SECOND)
    assert watch.settled(29 * SECOND) == []
    assert watch.settled(30 * SECOND + 1) == [Change("n1", 0, True)]
    watch.load("n1", Load(cpu=750), 40 * SECOND)  # below the upper threshold, above the lower one: still hot
    assert watch.settled(100 * SECOND) == []
    watch.load("n1", Load(cpu=650), 100 * SECOND)
    assert watch.settled(130 * SECOND) == [Change("n1", 0, False)]


def test_failed_checks_fire_once_in_a_row() -> None:
    watch = Watch(Triggers(failed_checks=3, heartbeat=SECOND))
    assert watch.silent_at("n1", heard=5 * SECOND) == 8 * SECOND
    assert watch.silent("n1", 2 * SECOND) is None
    fired = watch.silent("n1", 3 * SECOND)
    assert fired is not None
    assert (fired.trigger, fired.subject, fired.have) == ("failed-checks", "n1", "3 in a row")
    assert watch.silent("n1", 4 * SECOND) is None
    assert watch.silent("n1", 0) is None
    assert watch.silent("n1", 3 * SECOND) is not None


def test_the_mean_response_fires_when_it_crosses_and_again_only_after_it_was_clearly_below() -> None:
    watch = Watch(Triggers(response_above=200 * MILLISECOND))
    fired = [bool(watch.response(400 * MILLISECOND)) for _ in range(20)]
    assert fired == [number == 5 for number in range(20)]  # 400 (1 - (7/8)^6) = 221
    assert [bool(watch.response(190 * MILLISECOND)) for _ in range(40)] == [False] * 40
    assert [bool(watch.response(400 * MILLISECOND)) for _ in range(10)] == [False] * 10, "it was never below 180"
    for _ in range(40):
        watch.response(10 * MILLISECOND)
    assert [bool(watch.response(400 * MILLISECOND)) for _ in range(10)].count(True) == 1


def test_use_fires_when_it_stays_above() -> None:
    watch = Watch(Triggers(use_above=900, use_for=10 * SECOND))
    assert watch.use(950, 1 * SECOND) is None
    assert watch.due() == 11 * SECOND
    assert watch.use(850, 5 * SECOND) is None  # between the thresholds: it goes on
    fired = watch.use(950, 11 * SECOND)
    assert fired is not None
    assert (fired.trigger, fired.have) == ("use", "95 %")
    assert watch.due() is None
    assert watch.use(1000, 30 * SECOND) is None
    watch.use(500, 31 * SECOND)
    assert watch.use(950, 32 * SECOND) is None
    assert watch.use(950, 42 * SECOND) is not None


def test_what_fires_forces_a_round_that_is_told_of_it_and_is_in_the_log() -> None:
    world = World().nodes(1, cpu=1).job("a", cpu=1).after("1s").start("a")
    world.after("15s")
    assert [(event.trigger, event.have) for event in world.log if isinstance(event, Triggered)] == [("use", "100 %")]

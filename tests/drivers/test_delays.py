"""How long a system takes to give a machine, learned from what it took before."""

from pathlib import Path

from poise.drivers.delays import DOUBT, KEPT, Delay, Delays
from poise.units import SECOND


def delay(expected: float, late: float) -> Delay:
    return Delay(round(expected * SECOND), round(late * SECOND))


def test_the_median_and_the_ninth_decile_of_the_latest_requests_replace_the_guess(tmp_path: Path) -> None:
    delays = Delays(tmp_path / "delays.json")
    assert delays.of("gpu", 20.0) == delay(20, 20 * DOUBT)
    for seconds in range(1, KEPT + 1):
        delays.add("gpu", seconds)
    assert delays.of("gpu", 20.0) == delay(4, 8)
    assert delays.of("other", 20.0) == delay(20, 20 * DOUBT)
    assert Delays(tmp_path / "delays.json").of("gpu", 20.0) == delay(4, 8), "it is remembered"
    for _ in range(KEPT):
        delays.add("gpu", 7.0)
    assert delays.of("gpu", 20.0) == delay(7, 7), "only the latest count"
    (tmp_path / "delays.json").write_text("{")
    assert Delays(tmp_path / "delays.json").of("gpu", 20.0) == delay(20, 20 * DOUBT)


def test_a_request_that_waits_for_longer_than_expected_is_expected_to_wait_as_long_again() -> None:
    delays = Delays()
    for seconds in (10.0, 10.0, 10.0, 100.0):
        delays.add("gpu", seconds)
    assert delays.of("gpu", 0.0, 4.0) == delay(6, 96)
    assert delays.of("gpu", 0.0, 30.0) == delay(30, 70)
    assert delays.of("gpu", 0.0, 300.0) == delay(300, 600)


def test_a_request_that_is_withdrawn_after_a_long_time_is_not_forgotten() -> None:
    delays = Delays()
    delays.give_up("gpu", 20.0, 5.0)
    assert delays.of("gpu", 20.0) == delay(20, 20 * DOUBT), "that says nothing"
    delays.give_up("gpu", 20.0, 60.0)
    assert delays.of("gpu", 20.0) == delay(120, 120)

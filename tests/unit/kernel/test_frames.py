"""Links: what is lost, doubled or overtaken is noticed. (`test_fleet_properties` has machines talk over lossy ones.)"""

import pytest

from poise.kernel.frames import Broken, Frames


def test_frames_are_heard_in_order_and_once() -> None:
    here, there = Frames(), Frames()
    sent = [here.number() for _ in range(3)]
    assert [there.hears(serial) for serial in sent] == [True, True, True]
    assert not there.hears(2)


def test_a_frame_that_is_missing_breaks_the_channel() -> None:
    there = Frames()
    assert there.hears(1)
    with pytest.raises(Broken, match="frame 2 has not come, 3 has"):
        there.hears(3)


def test_the_first_frame_may_be_the_missing_one() -> None:
    with pytest.raises(Broken):
        Frames().hears(2)

"""The node machine: what it starts, stops and says."""

from itertools import pairwise
from typing import Any

from poise.kernel.node import (
    BOOST_AFTER,
    Changed,
    Connected,
    Disconnected,
    Effect,
    Faulted,
    Fitness,
    Forget,
    Hang,
    Leaving,
    Limit,
    NodeMachine,
    Renew,
    Say,
    Shrink,
    Start,
    Stop,
    Telling,
)
from poise.model.jobs import Ending, Outcome
from poise.model.load import Load, Upkeep
from poise.model.messages import (
    Acked,
    Attempt,
    Beat,
    Desired,
    DeviceFault,
    Ended,
    FromAgent,
    Heard,
    Hello,
    Launch,
    Limited,
    Report,
    Running,
    Sized,
    Told,
)
from poise.model.resources import Shape
from poise.model.training import Training
from poise.model.usage import MAX_WINDOWS, SIGNALS, Window
from poise.testing import node
from poise.units import MILLISECOND, SECOND

ONE = Shape(cpu=1000)


def at(name: str, epoch: int = 1) -> Attempt:
    return Attempt(name, epoch)


def launch(name: str, *, epoch: int = 1, slots: int = 1, shape: Shape = ONE, **fields: Any) -> Launch:
    return Launch(attempt=at(name, epoch), argv=("x",), shape=shape, slots=slots, **fields)


class Bench:
    """A machine with a connected channel, and what it did."""

    def __init__(self, *, cpu: float = 2, gpus: int = 0, connected: bool = True) -> None:
        self.machine = NodeMachine(node("n1", cpu=cpu, gpus=gpus), range(int(cpu)))
        self.now = SECOND
        self.said: list[FromAgent] = []
        if connected:
            self.feed(Connected())
            self.feed(Acked(serial=0))
            self.said.clear()

    def feed(self, message: Any) -> list[Effect]:
        effects = self.machine.handle(message, self.now)
        self.said += [effect.message for effect in effects if isinstance(effect, Say)]
        return effects

    def launch(self, *launches: Launch) -> list[str]:
        """What started."""
        return self._started(self.feed(Desired(launches=launches)))

    def end(self, name: str, outcome: Outcome = "done", run: int = 0, epoch: int = 1) -> list[str]:
        ended = Ended(attempt=at(name, epoch), ending=Ending(outcome=outcome, run=run))
        return self._started(self.feed(Changed(ended=(ended,))))

    def _started(self, effects: list[Effect]) -> list[str]:
        return [effect.launch.attempt.task for effect in effects if isinstance(effect, Start)]

    def ended(self) -> list[tuple[str, str]]:
        """What it reported to have ended, over all reports."""
        return [
            (done.attempt.task, done.ending.outcome)
            for message in self.said
            if isinstance(message, Hello | Report)
            for done in message.ended
        ]


def test_an_ending_that_is_told_again_after_it_is_durable_may_be_forgotten() -> None:
    """Its keeper was killed before it had written down that it may forget it, and whoever buried it told it anew."""
    bench = Bench()
    bench.launch(launch("a"))
    again = Changed(ended=(Ended(attempt=at("a"), ending=Ending(outcome="done")),))
    assert not any(isinstance(effect, Forget) for effect in [*bench.feed(again), *bench.feed(again)]), "not durable yet"
    assert Forget((at("a"),)) in bench.feed(Acked(serial=1))
    assert bench.feed(again) == [Forget((at("a"),))]
    assert bench.ended() == [("a", "done")]


def test_an_ending_is_kept_until_the_report_that_tells_it_is_durable() -> None:
    """Else the control plane takes what has ended for lost when the connection breaks, and has it run again."""
    bench = Bench()
    bench.launch(launch("a"), launch("b"))
    bench.end("a")
    bench.end("b")
    assert bench.ended() == [("a", "done")]
    bench.feed(Acked(serial=1))
    bench.said.clear()
    bench.feed(Disconnected())
    bench.feed(Connected())
    assert bench.ended() == [("b", "done")]


# --- a node that can start nothing ----------------------------------------------------------------------------------


def test_what_waits_on_a_node_that_can_start_nothing_is_handed_back_after_saying_so() -> None:
    bench = Bench(cpu=1)
    bench.launch(launch("a"), launch("b", queued=True))
    bench.feed(Fitness("the disk is full"))
    assert bench.said == [Report(serial=1, unfit="the disk is full", ended=(_returned("b"),))]
    assert bench.launch(launch("c")) == bench.end("a", "returned") == []
    bench.feed(Acked(serial=1))
    assert bench.ended() == [("b", "returned"), ("c", "returned"), ("a", "returned")]
    assert bench.feed(Fitness("the disk is full")) == [], "it has been said"
    bench.feed(Acked(serial=2))
    bench.feed(Fitness(""))
    assert bench.said[-1] == Report(serial=3, unfit="")
    assert bench.launch(launch("d")) == ["d"]


def test_a_new_connection_is_told_that_nothing_can_be_started() -> None:
    bench = Bench(connected=False)
    bench.feed(Fitness("the disk is full"))
    bench.feed(Connected())
    [hello] = bench.said
    assert isinstance(hello, Hello) and hello.unfit == "the disk is full"


def _returned(name: str) -> Ended:
    return Ended(attempt=at(name), ending=Ending(outcome="returned"))


# --- slots -----------------------------------------------------------------------------------------------------------


def test_a_node_that_will_be_gone_stops_all_and_says_how_each_ended() -> None:
    bench = Bench(cpu=2)
    assert bench.launch(*(launch(name, slots=2) for name in ("ends", "stops", "waits"))) == ["ends", "stops"]
    stops = [effect.attempt.task for effect in bench.feed(Leaving("its pod goes")) if isinstance(effect, Stop)]
    assert stops == ["ends", "stops"]
    assert bench.said[-1].unfit == "its pod goes"  # type: ignore[union-attr]
    bench.feed(Acked(serial=bench.said[-1].serial))  # type: ignore[union-attr]
    assert bench.launch(launch("comes", slots=2)) == []
    bench.feed(Fitness(""))
    bench.end("ends")
    bench.end("stops", "signal")
    while bench.machine.untold():
        bench.feed(Acked(serial=bench.said[-1].serial))  # type: ignore[union-attr]
    assert dict(bench.ended()) == {"waits": "returned", "comes": "returned", "ends": "done", "stops": "lost"}


def test_what_was_given_room_starts_at_once_on_cores_of_its_own() -> None:
    bench = Bench(cpu=4)
    effects = bench.feed(Desired(launches=(launch("a", slots=1), launch("b", slots=2))))
    assert [(effect.slot, effect.cpus) for effect in effects if isinstance(effect, Start)] == [(0, (0,)), (1, (1,))]
    wide = Shape(cpu=2000)
    [start] = bench.feed(Desired(launches=(launch("c", shape=wide),)))
    assert isinstance(start, Start)
    assert start.cpus == (2, 3)


def test_part_of_a_core_is_not_bound() -> None:
    [start] = Bench().feed(Desired(launches=(launch("a", shape=Shape(cpu=500)),)))
    assert isinstance(start, Start)
    assert start.cpus == ()


def test_no_more_run_than_the_control_plane_said() -> None:
    bench = Bench(cpu=8)
    assert bench.launch(launch("a"), launch("b", queued=True), launch("c", queued=True)) == ["a"]
    assert bench.end("a") == ["b"]
    assert bench.launch(launch("d", slots=2)) == ["d"]
    assert bench.end("b") == ["c"]


def test_what_the_last_launch_said_holds() -> None:
    """The ledger gives the room of an ended attempt away; it must not be taken again by what comes late."""
    bench = Bench()
    bench.launch(launch("a", slots=1), launch("b", slots=2))
    bench.end("a")
    assert bench.launch(launch("c", slots=1, queued=True)) == []
    assert bench.end("b") == ["c"]


def test_cores_of_an_ended_attempt_are_given_to_the_next_shape() -> None:
    bench = Bench(cpu=2)
    bench.launch(launch("a", slots=1), launch("b", slots=2))
    assert bench.end("a") == bench.end("b") == []
    [start] = bench.feed(Desired(launches=(launch("c", shape=Shape(cpu=2000)),)))
    assert isinstance(start, Start)
    assert (start.slot, start.cpus) == (0, (0, 1))


def test_short_work_is_handed_over_ahead_of_time() -> None:
    bench = Bench(cpu=1)
    brief: dict[str, Any] = {"expect": 8 * MILLISECOND}
    first = launch("a", **brief)
    rest = [launch(f"q{number}", queued=True, **brief) for number in range(5)]
    assert bench.launch(first, *rest) == ["a", "q0", "q1"]  # 24 ms ahead is more than enough
    assert bench.end("a") == ["q2"]


def test_work_of_unknown_length_is_not_handed_over_ahead() -> None:
    bench = Bench(cpu=1)
    assert bench.launch(launch("a"), launch("b", queued=True, expect=MILLISECOND)) == ["a"]
    bench = Bench(cpu=1)
    assert bench.launch(launch("a", expect=MILLISECOND), launch("b", queued=True), launch("c", queued=True)) == [
        "a",
        "b",
    ]


# --- order -----------------------------------------------------------------------------------------------------------


def test_what_has_room_of_its_own_goes_before_what_is_queued() -> None:
    """A gang's members start together, whatever waits on the node."""
    bench = Bench(cpu=4)
    bench.launch(launch("holder", slots=1), launch("q", slots=1, queued=True, priority=0))
    gang = [launch(f"g[{rank}]", slots=2 + rank, gang="g", priority=3) for rank in range(2)]
    assert bench.launch(*gang) == ["g[0]", "g[1]"]
    assert bench.end("g[0]") == ["q"]


def test_higher_classes_go_first_then_what_is_known_to_be_short() -> None:
    bench = Bench(cpu=1)
    bench.launch(launch("x", kind="long"))
    bench.end("x", run=SECOND)  # this class is now one level down
    bench.launch(launch("holder"))
    waiting = [
        launch("low", priority=3, queued=True),
        launch("long", kind="long", queued=True),
        launch("short", kind="short", queued=True),
        launch("high", priority=1, queued=True),
    ]
    bench.launch(*waiting)
    order = []
    name = "holder"
    while started := bench.end(name):
        [name] = started
        order.append(name)
    assert order == ["high", "short", "long", "low"]


def test_levels_go_down_two_steps_and_come_up_again() -> None:
    bench = Bench(cpu=1)
    for run, level in ((SECOND, 1), (SECOND, 1), (20 * SECOND, 2), (60 * SECOND, 2), (SECOND, 1), (MILLISECOND, 0)):
        bench.launch(launch("a", kind="k"))
        bench.end("a", run=run)
        bench.feed(Acked(serial=len(bench.said)))
        assert bench.machine._levels["k"] == level


def test_waiting_raises_by_one_class_a_second() -> None:
    bench = Bench(cpu=1)
    bench.launch(launch("holder"), launch("low", priority=3, queued=True))
    bench.now += 2 * BOOST_AFTER
    bench.launch(launch("high", priority=1, queued=True))
    assert bench.end("holder") == ["low"]  # raised to high, and there before


def test_a_second_of_waiting_goes_before_a_shorter_class() -> None:
    bench = Bench(cpu=1)
    bench.launch(launch("x", kind="long"))
    bench.end("x", run=SECOND)
    bench.launch(launch("holder"), launch("patient", kind="long", queued=True))
    bench.now += BOOST_AFTER
    bench.launch(launch("short", kind="short", queued=True))
    assert bench.end("holder") == ["patient"]


# --- stopping --------------------------------------------------------------------------------------------------------


def test_stop_hands_back_what_waits_and_ends_what_runs() -> None:
    bench = Bench(cpu=1)
    bench.launch(launch("a"), launch("b", queued=True))
    effects = bench.feed(Desired(stops=(at("a"), at("b"), at("nothing"))))
    assert [effect for effect in effects if isinstance(effect, Stop)] == [Stop(at("a"))]
    assert bench.ended() == [("b", "returned")]
    assert bench.end("a", "stopped") == []


def test_recall_leaves_what_has_a_slot() -> None:
    bench = Bench(cpu=1)
    bench.launch(launch("a"), launch("b", queued=True))
    effects = bench.feed(Desired(recalls=(at("a"), at("b"))))
    assert not any(isinstance(effect, Stop) for effect in effects)
    assert bench.ended() == [("b", "returned")]


def test_what_a_complete_answer_does_not_name_is_stopped() -> None:
    bench = Bench(cpu=2)
    bench.launch(launch("keep"), launch("gone", slots=2), launch("back", slots=2, queued=True))
    desired = Desired(complete=True, keep=(at("keep"),), launches=(launch("new", slots=2),))
    effects = bench.feed(desired)
    assert [effect.attempt.task for effect in effects if isinstance(effect, Stop)] == ["gone"]
    assert ("back", "returned") in bench.ended()
    assert bench.end("gone", "stopped") == ["new"]


def test_an_incomplete_one_stops_nothing_else() -> None:
    bench = Bench(cpu=2)
    bench.launch(launch("a"))
    assert not any(isinstance(effect, Stop) for effect in bench.feed(Desired(launches=(launch("b", slots=2),))))


# --- nothing twice ---------------------------------------------------------------------------------------------------


def test_a_launch_received_twice_starts_once() -> None:
    bench = Bench()
    assert bench.launch(launch("a")) == ["a"]
    assert bench.launch(launch("a", slots=2)) == []
    bench.end("a")
    assert bench.launch(launch("a")) == []  # its ending is not yet durable elsewhere


def test_the_next_attempt_of_a_task_waits_for_the_last_to_end() -> None:
    bench = Bench()
    bench.launch(launch("a", epoch=1))
    new = launch("a", epoch=2, slots=2)
    effects = bench.feed(Desired(complete=True, keep=(at("a", 2),), launches=(new,)))
    assert not any(isinstance(effect, Start) for effect in effects)
    assert bench.end("a", "stopped", epoch=1) == ["a"]


def test_a_device_is_not_given_to_two() -> None:
    bench = Bench(cpu=4, gpus=2)
    one = Shape(cpu=1000, gpus=1)
    bench.launch(launch("old", shape=one, devices=(0,)))
    news = (launch("new", shape=one, devices=(0,), slots=2), launch("other", shape=one, devices=(1,), slots=2))
    effects = bench.feed(Desired(complete=True, keep=tuple(new.attempt for new in news), launches=news))
    assert [effect.launch.attempt.task for effect in effects if isinstance(effect, Start)] == ["other"]
    assert bench.end("old", "stopped") == ["new"]


def test_a_device_is_shared_by_those_who_ask_for_a_part_of_it() -> None:
    bench = Bench(cpu=8, gpus=1)
    part, whole = Shape(cpu=1000, gpus=1, share=400), Shape(cpu=1000, gpus=1)
    started = [bench.launch(launch(name, shape=part, devices=(0,), slots=3)) for name in ("a", "b", "c")]
    assert [*started, bench.launch(launch("all", shape=whole, devices=(0,)))] == [["a"], ["b"], [], []]
    assert bench.end("a", "stopped") == ["c"]
    bench.end("b", "stopped")
    assert bench.end("c", "stopped") == ["all"]


def test_no_slot_is_opened_without_room_for_it() -> None:
    """The ledger does not count what it has given up; here it still runs."""
    bench = Bench(cpu=2)
    bench.launch(launch("old", shape=Shape(cpu=2000)))
    new = launch("new")
    bench.feed(Desired(complete=True, keep=(new.attempt,), launches=(new,)))
    assert bench.end("old", "stopped") == ["new"]


# --- reports ---------------------------------------------------------------------------------------------------------


def test_one_report_is_in_flight_and_the_next_gathers() -> None:
    bench = Bench(cpu=4)
    bench.launch(*(launch(name, slots=4) for name in "abc"))
    for name in "abc":
        bench.end(name)
    assert bench.ended() == [("a", "done")]
    effects = bench.feed(Acked(serial=1))
    assert effects[0] == Forget((at("a"),))
    assert bench.ended() == [("a", "done"), ("b", "done"), ("c", "done")]
    assert [message.serial for message in bench.said if isinstance(message, Report)] == [1, 2]


def test_short_work_is_reported_once_by_its_ending() -> None:
    bench = Bench()
    bench.launch(launch("blocker"), launch("a", slots=2))
    bench.end("blocker")  # a report is in flight
    bench.feed(Changed(running=(Running(attempt=at("a"), pid=1),)))
    bench.end("a")
    bench.feed(Acked(serial=1))
    last = bench.said[-1]
    assert isinstance(last, Report)
    assert (last.running, [done.attempt.task for done in last.ended]) == ((), ["a"])


def test_evidence_is_kept_until_it_is_durable_elsewhere() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    bench.end("a")
    bench.feed(Disconnected())
    bench.feed(Connected())
    assert bench.ended() == [("a", "done"), ("a", "done")]
    assert bench.feed(Acked(serial=0))[0] == Forget((at("a"),))
    bench.feed(Disconnected())
    bench.feed(Connected())
    assert len(bench.ended()) == 2


def test_nothing_is_said_while_the_channel_is_away() -> None:
    bench = Bench(connected=False)
    bench.launch(launch("a"))
    bench.end("a")
    assert bench.said == []


def test_hello_tells_all_it_holds() -> None:
    bench = Bench(cpu=1)
    bench.launch(launch("a"), launch("b", queued=True), launch("c", queued=True))
    bench.feed(Changed(running=(Running(attempt=at("a"), pid=7, cpus=(0,)),)))
    bench.feed(Connected())
    hello = bench.said[-1]
    assert isinstance(hello, Hello)
    assert hello.running == (Running(attempt=at("a"), pid=7, cpus=(0,)),)
    assert hello.queued == (at("b"), at("c"))


def test_what_the_executor_says_of_strangers_is_told_to_nobody() -> None:
    bench = Bench()
    ended = Ended(attempt=at("stranger"), ending=Ending(outcome="done"))
    effects = bench.feed(Changed(running=(Running(attempt=at("stranger"), pid=1),), ended=(ended,)))
    assert (effects, bench.said) == ([Forget((at("stranger"),))], [])


# --- adoption --------------------------------------------------------------------------------------------------------


def test_a_restarted_agent_takes_over_what_its_keepers_hold() -> None:
    machine = NodeMachine(node("n1", cpu=2), range(2))
    running = Running(attempt=at("a"), pid=1, cpus=(1,))
    queued = launch("b", queued=True)
    ended = Ended(attempt=at("z"), ending=Ending(outcome="done"))
    machine.adopt([(3, launch("a"), (1,), running), (3, queued, (1,), None)], [ended])
    assert machine.held() == 2
    [say] = machine.handle(Connected(), 1)
    assert isinstance(say, Say) and isinstance(say.message, Hello)
    assert (say.message.running, say.message.queued, say.message.ended) == ((running,), (at("b"),), (ended,))
    keep = (at("a"), at("b"))
    effects = machine.handle(Desired(complete=True, keep=keep, launches=(launch("c", slots=2),)), 2)
    [start] = [effect for effect in effects if isinstance(effect, Start)]
    assert (start.slot, start.cpus) == (0, (0,))  # the adopted slot keeps its number and its core
    [forget] = machine.handle(Acked(serial=0), 3)
    assert forget == Forget((at("z"),))


# --- beats -----------------------------------------------------------------------------------------------------------


def beats(bench: Bench, until: int, pace: int = 0) -> list[tuple[float, float]]:
    """Time passes, and every beat is answered: when each was said and what it promised, in seconds."""
    found = []
    while (wakeup := bench.machine.wakeup()) is not None and wakeup <= until:
        bench.now = max(bench.now, wakeup)
        for effect in bench.machine.tick(bench.now):
            assert isinstance(effect, Say) and isinstance(effect.message, Beat)
            found.append((bench.now / SECOND, effect.message.every / SECOND))
            bench.feed(Heard(beat=effect.message.number, pace=pace))
    bench.now = until
    return found


def test_a_busy_node_says_fewer_words_to_a_control_plane_that_asks_for_fewer() -> None:
    bench = Bench()
    bench.feed(Desired(launches=(launch("a"),)))
    assert beats(bench, 3 * SECOND) == [(2, 1), (3, 1)]
    assert beats(bench, 10 * SECOND, pace=2 * SECOND) == [(4, 1), (5, 2), (7, 2), (9, 2)]
    assert beats(bench, 13 * SECOND) == [(11, 2), (13, 1)]
    beats(bench, 14 * SECOND, pace=2 * SECOND)
    bench.feed(Disconnected())
    bench.feed(Connected())
    assert beats(bench, 16 * SECOND) == [(15, 1), (16, 1)], "the next one may be of an older version"


def test_a_node_that_holds_work_says_a_word_each_second() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    assert beats(bench, 41 * SECOND) == [(at, 1) for at in range(2, 42)]


def test_whatever_is_said_is_as_good_as_a_beat() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    bench.now += SECOND // 2
    bench.feed(Changed(running=(Running(attempt=at("a"), pid=1),)))
    assert bench.machine.wakeup() == bench.now + SECOND


def test_an_idle_node_says_less_and_less_and_promises_when_it_will() -> None:
    bench = Bench()
    told = beats(bench, 50 * SECOND)
    assert told == [*((at, 1) for at in range(2, 11)), (11, 2), (13, 4), (17, 8), (25, 10), (35, 10), (45, 10)]
    bench.launch(launch("a"))
    assert beats(bench, 52 * SECOND) == [(50, 1), (51, 1), (52, 1)]  # at once, and each second


def test_an_idle_node_that_reports_a_failed_device_is_heard_again_within_a_second() -> None:
    bench = Bench(gpus=1)
    beats(bench, 50 * SECOND)
    bench.now = 50 * SECOND
    [say] = bench.feed(Faulted((DeviceFault(index=0, code="XID 79"),)))
    assert isinstance(say, Say) and isinstance(say.message, Report)
    assert bench.machine.wakeup() == bench.now + SECOND


def test_windows_are_said_with_a_beat_and_those_of_an_outage_after_it() -> None:
    bench = Bench(connected=False)
    for minute in range(1, MAX_WINDOWS + 4):
        assert bench.feed(told_window(minute)) == []
    bench.feed(Connected())
    bench.feed(Acked(serial=0))
    [say] = bench.feed(told_window(100))
    assert isinstance(say, Say) and isinstance(say.message, Beat)
    assert [one.at for one in say.message.windows] == [*range(5, MAX_WINDOWS + 4), 100], "the oldest have gone"
    [say] = bench.feed(told_window(101))
    assert isinstance(say, Say) and isinstance(say.message, Beat)
    assert say.message.windows == (told_window(101),)


def test_of_a_minute_that_goes_on_as_it_began_only_the_beginning_and_the_end_are_said() -> None:
    bench = Bench()
    said = []
    for second in range(10, 190, 10):
        minute, cpu = (second - 1) // 60, 700 if 130 <= second <= 150 else 100 + second % 7
        bench.feed(Upkeep(sent=second))
        for say in bench.feed(window_of(minute, cpu)):
            assert isinstance(say, Say) and isinstance(say.message, Beat) and say.message.upkeep is not None
            said.append((second, say.message.upkeep.sent, [(one.at, one.mean[0]) for one in say.message.windows]))
    assert said == [
        (10, 10, [(0, 103)]),
        (70, 70, [(0, 104), (1, 100)]),  # nothing new for 60 s: how that minute ended comes with the next
        (130, 130, [(1, 101), (2, 700)]),
        (160, 160, [(2, 106)]),
    ]


def window_of(at: int, cpu: int) -> Window:
    return Window(at, (cpu, *(1,) * (len(SIGNALS) - 1)), (cpu, *(1,) * (len(SIGNALS) - 1)))


def told_window(at: int) -> Window:
    return Window(at, (1,) * len(SIGNALS), (1,) * len(SIGNALS))


def test_the_load_is_said_when_it_has_changed_noticeably() -> None:
    bench = Bench()
    [say] = bench.feed(Load(cpu=500))
    assert isinstance(say, Say) and isinstance(say.message, Beat)
    assert (say.message.load, say.message.every) == (Load(cpu=500), SECOND)
    assert bench.feed(Load(cpu=501)) == []
    bench.feed(Disconnected())
    assert bench.feed(Load(cpu=900)) == []
    bench.feed(Connected())
    assert len(bench.feed(Load(cpu=900))) == 1  # whoever is told anew is told everything


def test_when_nothing_is_heard_the_node_connects_anew() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    last, hung = bench.now, None
    while hung is None:
        wakeup = bench.machine.wakeup()
        assert wakeup is not None
        bench.now = wakeup
        if Hang() in bench.machine.tick(wakeup):
            hung = wakeup
    assert hung == last + 4 * SECOND  # three beyond the second within which its beat should have been answered
    assert bench.machine.wakeup() is None
    assert bench.machine.tick(bench.now + SECOND) == []
    [say] = bench.feed(Connected())
    assert isinstance(say, Say) and isinstance(say.message, Hello)


# --- leases ----------------------------------------------------------------------------------------------------------

LEASE: dict[str, Any] = {"lease": 10 * SECOND}


def silent_until(bench: Bench, until: int) -> list[tuple[float, Effect]]:
    """Time passes and nothing is heard: what else than beats and farewells the machine does, and when."""
    found: list[tuple[float, Effect]] = []
    while (wakeup := bench.machine.wakeup()) is not None and wakeup <= until:
        bench.now = wakeup
        effects = bench.machine.tick(wakeup)
        bench.said += [effect.message for effect in effects if isinstance(effect, Say)]
        found += [(wakeup / SECOND, effect) for effect in effects if not isinstance(effect, Say | Hang)]
    bench.now = until
    return found


def test_exclusive_work_is_stopped_at_four_fifths_of_its_lease() -> None:
    """The lease runs from the sending of what was last answered, here the hello at 1 s, whatever was said since."""
    bench = Bench()
    bench.now = 3 * SECOND
    renew, start = bench.feed(Desired(launches=(launch("a", **LEASE), launch("b", slots=2))))[:2]
    assert (renew, isinstance(start, Start)) == (Renew(at("a"), 10 * SECOND), True)
    assert silent_until(bench, 60 * SECOND) == [(9, Stop(at("a")))]  # the fenced one goes on
    bench.end("a", "stopped", run=5)
    assert bench.ended() == []
    bench.feed(Connected())
    [said] = [message for message in bench.said if isinstance(message, Hello)]
    assert [(done.ending.outcome, done.ending.note) for done in said.ended] == [("lost", "its lease ran out")]


def test_answers_renew_the_lease_and_whatever_holds_the_work_is_told() -> None:
    bench = Bench()
    bench.launch(launch("a", **LEASE))
    renewed = []
    for _ in range(20):
        bench.now += SECOND // 2
        for effect in bench.machine.tick(bench.now):
            if isinstance(effect, Say) and isinstance(effect.message, Beat):
                renewed += bench.feed(Heard(beat=effect.message.number))
    assert renewed == [Renew(at("a"), (2 + at_ + 9) * SECOND) for at_ in range(10)]
    assert bench.machine.tick(bench.now) == []


def test_an_answer_that_comes_late_renews_from_when_was_asked() -> None:
    bench = Bench()
    bench.launch(launch("a", **LEASE))
    bench.now = 2 * SECOND
    [say] = bench.machine.tick(bench.now)
    assert isinstance(say, Say) and isinstance(say.message, Beat)
    bench.now = 4 * SECOND
    assert bench.feed(Heard(beat=say.message.number)) == [Renew(at("a"), 11 * SECOND)]
    assert silent_until(bench, 60 * SECOND) == [(10, Stop(at("a")))]


def test_a_beat_that_is_answered_before_the_hello_renews_nothing() -> None:
    """What the answer to the hello says to stop may be on another node when a lease has passed since the hello."""
    bench = Bench()
    bench.launch(launch("a", **LEASE))
    bench.feed(Disconnected())
    bench.feed(Connected())
    bench.now += SECOND
    [say] = bench.machine.tick(bench.now)
    assert isinstance(say, Say) and isinstance(say.message, Beat)
    assert bench.feed(Heard(beat=say.message.number)) == []
    bench.feed(Desired(complete=True, keep=(at("a"),)))
    bench.now = 5 * SECOND
    bench.feed(Acked(serial=0))
    assert silent_until(bench, 60 * SECOND) == [(9, Stop(at("a")))]  # the hello was said at 1 s


def test_exclusive_work_does_not_begin_without_a_connection_and_is_handed_back_in_time() -> None:
    bench = Bench()
    bench.launch(launch("a"), launch("b", queued=True, **LEASE))
    bench.feed(Disconnected())
    assert bench.end("a") == []
    assert silent_until(bench, 60 * SECOND) == []
    bench.feed(Connected())
    assert ("b", "returned") in bench.ended()


def test_exclusive_work_that_waits_begins_when_the_node_is_heard_again() -> None:
    bench = Bench()
    bench.launch(launch("a"), launch("b", queued=True, **LEASE))
    bench.feed(Disconnected())
    assert bench.end("a") == []
    bench.now += SECOND
    bench.feed(Connected())
    assert bench._started(bench.feed(Acked(serial=0))) == ["b"]


def test_what_was_handed_over_before_the_first_answer_waits_for_it() -> None:
    bench = Bench(connected=False)
    bench.feed(Connected())
    assert bench.launch(launch("a", **LEASE)) == []
    assert bench._started(bench.feed(Acked(serial=0))) == ["a"]


def test_of_what_an_earlier_agent_began_the_lease_is_known_with_the_first_answer() -> None:
    machine = NodeMachine(node("n1", cpu=2), range(2))
    running = Running(attempt=at("a"), pid=1)
    machine.adopt([(0, launch("a", **LEASE), (), running)], [])
    assert (machine.wakeup(), machine.tick(100 * SECOND)) == (None, [])
    machine.handle(Connected(), 100 * SECOND)
    machine.handle(Desired(complete=True, keep=(at("a"),)), 100 * SECOND)
    assert machine.handle(Acked(serial=0), 101 * SECOND) == [Renew(at("a"), 109 * SECOND)]


def test_a_node_that_is_not_connected_says_nothing() -> None:
    bench = Bench(connected=False)
    assert bench.machine.wakeup() is None
    assert bench.machine.tick(100 * SECOND) == []


# --- what commands tell -----------------------------------------------------------------------------------------------


def telling(name: str, step: int, **fields: Any) -> Telling:
    return Telling((Told(attempt=at(name), training=Training(step=step, **fields)),))


def steps_said(bench: Bench) -> list[int]:
    reports = [message for message in bench.said if isinstance(message, Report)]
    return [told.training.step for report in reports for told in report.told if told.training]


def test_what_commands_tell_is_passed_on_the_latest_only() -> None:
    """While a report is on its way the next gathers what comes, and no more than one word of each."""
    bench = Bench()
    bench.launch(launch("a"))
    for step in (1, 2, 3):
        bench.feed(telling("a", step))
    bench.feed(Acked(serial=1))
    assert steps_said(bench) == [1, 3]


def test_the_last_word_of_what_ends_is_not_lost_behind_a_report_that_is_on_its_way() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    for step in (1, 2):
        bench.feed(telling("a", step))
    bench.end("a")
    bench.feed(Acked(serial=1))
    assert steps_said(bench) == [1, 2]


def test_the_latest_is_said_anew_on_another_connection() -> None:
    bench = Bench()
    bench.launch(launch("a"), launch("b"))
    bench.feed(telling("a", 7))
    bench.feed(Disconnected())
    bench.end("b")
    bench.feed(Connected())
    bench.feed(Acked(serial=0))
    assert steps_said(bench) == [7, 7]
    bench.feed(Acked(serial=1))
    bench.end("a")
    bench.feed(Connected())
    bench.feed(Acked(serial=0))
    assert steps_said(bench) == [7, 7]


def test_nobody_speaks_for_what_is_not_here() -> None:
    bench = Bench()
    bench.feed(telling("a", 1))
    assert bench.said == []


def stands_still(bench: Bench, seconds: int, *, cpu: float = 0.0) -> list[Effect]:
    """What is done about attempts that use so much of a CPU."""
    effects: list[Effect] = []
    for _ in range(seconds):
        bench.now += SECOND
        still = bench.machine.standing_still()
        used = {attempt: int(cpu * bench.now) for attempt in still}
        effects += [effect for effect in bench.feed(Telling((), used)) if isinstance(effect, Stop)]
    return effects


def test_training_whose_steps_stand_still_without_using_cpu_has_hung() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    bench.feed(telling("a", 5, step_time=SECOND))
    assert stands_still(bench, 298) == []
    why = "no step for 5m0s after step 5; one took 1.0 s, and no CPU used for 5m0s"
    assert stands_still(bench, 3) == [Stop(at("a"), why)]
    assert stands_still(bench, 1000) == [], "it is said once"


def test_nobody_knows_the_cpu_time_of_some_attempts() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    bench.feed(telling("a", 5, step_time=SECOND))
    for _ in range(299):
        bench.now += SECOND
        assert bench.feed(Telling(())) == []
    bench.now += 2 * SECOND
    assert len(bench.feed(Telling(()))) == 1


def test_an_evaluation_that_nobody_announced_is_no_hang_while_it_uses_cpu() -> None:
    """The first one takes an hour, between two steps of a second; then the process stands still."""
    bench = Bench()
    bench.launch(launch("a"))
    bench.feed(telling("a", 5, step_time=SECOND))
    assert stands_still(bench, 3600, cpu=0.05) == []
    assert stands_still(bench, 280, cpu=0.001) == []
    assert len(stands_still(bench, 300, cpu=0.001)) == 1


def test_what_was_learned_of_pauses_survives_a_rest() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    bench.feed(telling("a", 1, step_time=SECOND))
    assert stands_still(bench, 200) == []
    bench.feed(telling("a", 1, step_time=0))
    assert stands_still(bench, 4000) == []
    bench.feed(telling("a", 2, step_time=SECOND))
    assert stands_still(bench, 590) == []
    assert len(stands_still(bench, 20)) == 1


def test_an_announced_evaluation_is_measured_by_the_longest_one_before() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    bench.feed(telling("a", 1, step_time=SECOND))
    bench.feed(telling("a", 1, evaluating=True))
    assert stands_still(bench, 1000) == [], "nobody knows yet what an evaluation takes"
    bench.feed(telling("a", 2, step_time=SECOND))
    bench.feed(telling("a", 2, evaluating=True))
    assert stands_still(bench, 2990) == []
    why = "an evaluation for 50m0s after step 2; the longest one took 16m40s, and no CPU used for 50m0s"
    assert stands_still(bench, 20) == [Stop(at("a"), why)]


def test_how_long_it_may_stand_still_follows_what_was_seen_of_it() -> None:
    """Twenty of its steps, or three times its longest pause; and what has made no step yet is not looked at."""
    bench = Bench()
    bench.launch(launch("a"))
    bench.feed(telling("a", 0))
    assert stands_still(bench, 400) == []
    bench.feed(telling("a", 1, step_time=20 * SECOND))
    assert stands_still(bench, 390) == []
    bench.feed(telling("a", 2, step_time=SECOND))
    assert stands_still(bench, 1000) == []
    bench.feed(telling("a", 3, step_time=SECOND))
    assert stands_still(bench, 2900) == []
    assert len(stands_still(bench, 200)) == 1


def test_a_command_that_has_said_how_its_silence_is_to_be_taken_is_taken_at_its_word() -> None:
    bench = Bench()
    bench.launch(launch("a", hang=3600 * SECOND))
    bench.feed(telling("a", 5, step_time=SECOND))
    assert stands_still(bench, 400) == []


def test_what_makes_no_steps_now_is_not_missed() -> None:
    """It exports a model, or writes what it has learned when all is done."""
    bench = Bench()
    bench.launch(launch("a"), launch("b"))
    for name in ("a", "b"):
        bench.feed(telling(name, 5, step_time=SECOND))
    bench.feed(telling("a", 5, step_time=0))
    bench.feed(telling("b", 6, step_time=SECOND, progress=1_000_000))
    assert stands_still(bench, 2000) == []


def test_a_machine_that_slept_does_not_count_that() -> None:
    bench = Bench()
    bench.launch(launch("a"))
    bench.feed(telling("a", 5, step_time=SECOND))
    bench.now += 3600 * SECOND
    assert stands_still(bench, 30) == []


def test_another_time_limit_is_passed_on_now_or_with_the_start() -> None:
    bench = Bench(cpu=1)
    bench.feed(Desired(launches=(launch("a"), launch("b"))))
    told = bench.feed(Desired(limited=(Limited(at("a"), SECOND), Limited(at("b"), 0), Limited(at("gone"), 1))))
    assert told == [Limit(at("a"), SECOND)]
    after = bench.feed(Changed(ended=(Ended(attempt=at("a"), ending=Ending(outcome="timeout")),)))
    assert [effect for effect in after if isinstance(effect, Limit)] == [Limit(at("b"), 0)]


def test_a_smaller_memory_limit_waits_until_the_attempt_has_run_for_long_and_frees_room_once_it_applies() -> None:
    """The keeper answers when it has lowered the limit. Until then the node asks once a minute."""
    bench = Bench(cpu=4)
    large = Shape(cpu=1000, memory=6 << 30)
    bench.launch(launch("a", shape=large))
    bench.feed(Changed(running=(Running(attempt=at("a"), pid=1),)))
    bench.feed(Acked(serial=1))
    told = bench.feed(Desired(limited=(Limited(at("a"), 0, 2 << 30),)))
    assert told == [Limit(at("a"), 0)], "not yet"
    asked: list[int] = []
    for second in range(13 * 60):
        bench.now += SECOND
        asked += [second for effect in bench.machine.tick(bench.now) if effect == Shrink(at("a"), 2 << 30)]
        bench.feed(Heard(beat=0))
    assert 600 <= asked[0] <= 660
    assert {after - before for before, after in pairwise(asked)} == {60}
    answer = Sized(attempt=at("a"), memory=2 << 30, used=1 << 30)
    bench.feed(answer)
    report = bench.said[-1]
    assert isinstance(report, Report)
    assert report.sized == (answer,)
    assert bench.machine._used_memory == 2 << 30
    bench.now += 300 * SECOND
    assert not [effect for effect in bench.machine.tick(bench.now) if isinstance(effect, Shrink)]
    assert bench.feed(Desired(limited=(Limited(at("a"), 0, 3 << 30),))) == [Limit(at("a"), 0, 3 << 30)], "raised again"
    assert bench.machine._used_memory == 3 << 30


def test_a_node_that_shrinks_starts_nothing_until_what_it_runs_fits() -> None:
    bench = Bench(cpu=3)
    assert bench.launch(launch("a", slots=3), launch("b", slots=3), launch("c", slots=3)) == ["a", "b", "c"]
    bench.machine.node = node("n1", cpu=1)
    bench.feed(Connected())
    assert bench.launch(launch("d", slots=3), launch("e", slots=3)) == []
    assert bench.end("a") == []
    assert bench.end("b") == [], "what is left fills it"
    assert bench.end("c") == ["d"]


def test_a_device_that_is_there_and_not_offered_is_told_of_while_work_holds_it_and_gets_no_other() -> None:
    bench = Bench(gpus=2)
    on = Shape(cpu=100, gpus=1)
    assert bench.launch(launch("a", shape=on, slots=2, devices=(1,))) == ["a"]
    bench.machine.node, bench.machine.withheld = node("n1", gpus=1), {0, 1}
    bench.feed(Connected())
    hello = bench.said[-1]
    assert isinstance(hello, Hello)
    assert ([device.index for device in hello.node.devices], hello.withdrawn) == ([0], (1,))
    assert bench.end("a") == []
    assert bench.launch(launch("b", shape=on, devices=(1,)), launch("c", shape=on, slots=2, devices=(0,))) == ["c"]
    bench.machine.withheld = ()
    bench.feed(Connected())
    hello = bench.said[-1]
    assert isinstance(hello, Hello)
    assert hello.withdrawn == (), "it is gone"

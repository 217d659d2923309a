"""Whom a version on trial answers, what it costs those who ask, and how its trial goes on."""

import asyncio
import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from poise.errors import InputError
from poise.model.canary import Stage, TrialRules
from poise.model.serving import Limits
from poise.units import MILLISECOND, SECOND
from poise_serve import recording
from poise_serve.canary import MOST_COPIED, Trial, Version
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.quarantine import LOSSES
from poise_serve.recording import Recorder, read_recorded
from poise_serve.service import ANYBODY, Asker, Listener, Service, Tell
from poise_serve.wire import Answer

BROKEN = Answer(500, "application/json", b"{}")


class Played:
    """Stands for a service: answers at once, what `answers` makes of what it is asked."""

    def __init__(self, answers: Callable[[bytes], Answer | Refuse]) -> None:
        self.answers = answers
        self.listeners: list[Listener] = []
        self.replicas = 1
        self.batcher = SimpleNamespace(limits=Limits(timeout=10 * SECOND), losses=LOSSES)
        self.suspected: list[bytes] = []
        self.asked: list[bytes] = []
        self.timeouts: list[int] = []
        self.askers: list[Asker] = []
        self.holds = False
        self.took = 10 * MILLISECOND
        self.cancelled: list[int] = []
        self.held: dict[int, tuple[bytes, Tell]] = {}

    async def ready(self) -> None: ...

    def suspect(self, body: bytes) -> None:
        self.suspected.append(body)

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        self.asked.append(body)
        self.timeouts.append(timeout)
        self.askers.append(asker)
        number = len(self.asked)
        self.held[number] = body, tell
        if not self.holds:
            self.release(number)
        return number

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self.held.pop(number, None)

    def release(self, *numbers: int) -> None:
        """Answer what it holds: these, or all."""
        for number in numbers or list(self.held):
            body, tell = self.held.pop(number)
            told = self.answers(body)
            tell(told)
            for listener in tuple(self.listeners):
                listener(body, told, self.took)


def same(body: bytes) -> Answer:
    return Answer(200, "application/json", body)


class Bench:
    """Two versions, and whoever asks."""

    def __init__(self, *stages: Stage, canary: Callable[[bytes], Answer | Refuse] = same, **rules: Any) -> None:
        self.stable, self.canary = Played(same), Played(canary)
        self.said: list[str] = []
        self.measured: list[tuple[float, int]] = []
        old, new = (Version(cast(Service, one), cast(Service, one)) for one in (self.stable, self.canary))
        made = TrialRules(stages=stages, after=20, **rules)
        self.trial = Trial("digits", made, old, new, lambda *told: self.measured.append(told), self.said.append)
        self.told: list[Any] = []

    def ask(self, times: int, timeout: int = 0) -> list[Any]:
        self.told = []
        for number in range(times):
            self.trial.ask(b"%d" % number, self.told.append, timeout)
        return self.told


@pytest.fixture(autouse=True)
def running() -> Iterator[None]:
    """Where a trial can say that it has ended."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    yield
    asyncio._set_running_loop(None)
    loop.close()


def test_shares_are_answered_by_it_in_even_turns_until_it_is_promoted() -> None:
    bench = Bench(Stage("share", 0.25), Stage("share", 0.5))
    bench.ask(40)
    assert bench.canary.asked == [b"%d" % number for number in range(3, 40, 4)]
    bench.ask(41)  # ten more: after twenty the next stage begins
    assert "share of 50 %, after errors 0.00%" in bench.said[-1]
    assert len(bench.canary.asked) == 20
    bench.ask(40)
    assert bench.trial.state == "promoted"
    assert bench.trial.ended.result() is True
    assert bench.canary.batcher.losses == LOSSES, "as one that serves"
    assert bench.measured == [(0.25, 0), (0.5, 0), (1.0, 1)]


def test_when_all_is_asked_of_it_it_is_held_beside_what_stable_did_before() -> None:
    bench = Bench(Stage("share", 0.5), Stage("share", 1.0))
    bench.ask(400)
    assert bench.trial.state == "promoted"
    bench = Bench(Stage("share", 0.05), Stage("share", 1.0))
    bench.ask(390)
    bench.canary.took = 100 * MILLISECOND
    bench.ask(20)
    assert "P95 100.0 ms beside 10.0 ms" in bench.said[-1] and bench.trial.state == "rolled back"


def test_whoever_asks_never_sees_it_fail() -> None:
    failing: Iterator[Answer | Refuse] = iter(
        [BROKEN, Refuse(1, "lost", "the replica died"), Answer(422, "text/plain", b"no")] * 20
    )
    bench = Bench(Stage("share", 0.5), canary=lambda _: next(failing))
    told = bench.ask(100)
    assert [(one.status, one.body) for one in told] == [(200, b"%d" % number) for number in range(100)]
    assert bench.trial.state == "rolled back"
    assert len(bench.canary.asked) == 10, "it is known after ten that it only fails"
    lost = bench.canary.asked[1::3]
    assert bench.stable.suspected == lost, "stable serves alone what a replica of the canary died of"
    assert "rolled back: errors 100.00% beside 0.00%" in bench.said[-1]


def test_what_is_asked_again_has_the_time_that_is_left() -> None:
    bench = Bench(Stage("share", 1.0), canary=lambda _: BROKEN)
    bench.ask(1, timeout=SECOND)
    bench.ask(1)
    assert bench.canary.timeouts == [SECOND // 2, 5 * SECOND], "so that there is time for another"
    assert 0.9 * SECOND < bench.stable.timeouts[0] < SECOND
    assert bench.stable.timeouts[1] == 0, "as long as the service says"


def test_copies_are_compared_and_answered_to_nobody() -> None:
    bench = Bench(Stage("shadow", 0.5), canary=lambda body: Answer(200, "x", b'{"was":%s}' % body))
    told = bench.ask(30)
    assert {one.body for one in told} == {b"%d" % number for number in range(30)}
    bench.ask(70)
    assert bench.trial.state == "rolled back"
    assert "answers the same" in bench.said[-1]
    bench = Bench(Stage("shadow", 1.0), canary=lambda body: Answer(200, "x", b"%s.0001" % body))
    bench.ask(40)
    assert bench.trial.state == "promoted", "nearly the same numbers are the same"


def test_without_a_replica_it_is_asked_nothing() -> None:
    bench = Bench(Stage("share", 1.0))
    bench.canary.replicas = 0
    assert len(bench.ask(10)) == 10
    assert not bench.canary.asked


def test_what_it_held_when_its_last_replica_died_is_asked_of_stable() -> None:
    bench = Bench(Stage("share", 0.5))
    bench.canary.holds = True
    assert len(bench.ask(4)) == 2
    bench.trial.changed()
    assert len(bench.told) == 2, "it has one"
    bench.canary.replicas = 0
    bench.trial.changed()
    assert (len(bench.told), bench.canary.cancelled) == (4, [1, 2])
    assert bench.trial.report()["answered"] == {"stable": 2, "canary": 2}, "no sample of stable"


def test_who_leaves_is_cancelled_where_the_question_is() -> None:
    bench = Bench(Stage("share", 0.5))
    bench.stable.holds = bench.canary.holds = True
    numbers = [bench.trial.ask(b"1", bench.told.append) for _ in range(3)]
    bench.trial.cancel(numbers[1])
    bench.trial.cancel(numbers[0])
    bench.trial.cancel(numbers[0])
    assert (bench.canary.cancelled, bench.stable.cancelled, bench.told) == ([1], [1], [])


def test_unless_it_is_to_be_promoted_it_stays_and_is_still_judged() -> None:
    bench = Bench(Stage("share", 0.5), promote=False)
    bench.ask(100)
    assert (bench.trial.state, len(bench.canary.asked)) == ("running", 50)
    assert len([line for line in bench.said if "stays at a share of 50 %" in line]) == 1
    bench.canary.answers = lambda _: BROKEN
    bench.ask(100)
    assert bench.trial.state == "rolled back"


def test_who_leaves_after_it_has_refused_at_once_takes_nobody_elses_answer_along() -> None:
    bench = Bench(Stage("share", 0.5), canary=lambda _: Refuse(1, "full", "too many wait"))
    bench.stable.holds = True
    numbers = [bench.trial.ask(b"%d" % number, bench.told.append) for number in range(4)]
    bench.trial.cancel(numbers[3])
    assert bench.stable.cancelled == [4], "its own number there, not that which the canary had given it"
    bench.stable.release()
    assert [one.body for one in bench.told] == [b"0", b"1", b"2"]


def test_the_least_of_times_is_halved_to_no_less_than_the_least() -> None:
    bench = Bench(Stage("share", 1.0))
    bench.ask(1, timeout=1)
    assert bench.canary.timeouts == [1], "none at all would be as long as the service says"


def test_who_leaves_since_it_takes_far_longer_than_stable_ever_has_is_counted() -> None:
    bench = Bench(Stage("share", 0.5))
    bench.stable.took = 100 * MILLISECOND
    bench.canary.holds = True
    for _ in range(40):
        numbers = [bench.trial.ask(b"1", bench.told.append) for _ in range(2)]
        bench.trial.cancel(numbers[1])
    assert bench.trial.report()["answered"]["canary"] == 0, "they left at once"
    numbers = [bench.trial.ask(b"1", bench.told.append) for _ in range(80)]
    time.sleep(0.15)
    for number in numbers:
        bench.trial.cancel(number)
    assert bench.trial.state == "rolled back"


def test_what_stable_says_of_what_the_canary_has_failed_at_is_no_sample_of_stable() -> None:
    # one request in five is refused by both; the canary fails at one more in twenty
    def old(body: bytes) -> Answer:
        return Answer(422, "text/plain", b"no") if int(body) % 5 < 1 else same(body)

    def new(body: bytes) -> Answer:
        return BROKEN if int(body) % 20 == 3 else old(body)

    bench = Bench(Stage("share", 1 / 3), Stage("share", 1.0), canary=new)
    bench.stable.answers = old
    bench.ask(3000)
    assert bench.trial.state == "rolled back", bench.said


def test_copies_that_wait_have_a_bound_in_bytes() -> None:
    bench = Bench(Stage("shadow", 1.0))
    bench.canary.holds = True
    body = b"1" * (1 << 20)
    for _ in range(500):
        bench.trial.ask(body, lambda told: None)
    assert 1 <= len(bench.canary.held) * 2 * len(body) <= MOST_COPIED
    bench.canary.holds = False
    bench.canary.release()
    bench.trial.ask(body, lambda told: None)
    assert not bench.canary.held and len(bench.canary.asked) > 1, "and there is room again"


def test_a_copy_larger_than_all_may_be_together_is_made_alone() -> None:
    bench = Bench(Stage("shadow", 1.0))
    bench.canary.holds = True
    for _ in range(3):
        bench.trial.ask(b"1" * (MOST_COPIED + 1), lambda told: None)
    assert len(bench.canary.held) == 1


@pytest.mark.parametrize("answer", [b"[" * 100_000 + b"%d" + b"]" * 100_000, b"1" * 400 + b"%d", b"7" * 5000 + b"%d"])
def test_answers_that_are_hard_to_compare_are_other_answers(answer: bytes) -> None:
    bench = Bench(Stage("shadow", 1.0), canary=lambda _: Answer(200, "application/json", answer % 1))
    bench.stable.answers = lambda _: Answer(200, "application/json", answer % 2)
    assert len(bench.ask(40)) == 40
    assert bench.trial.state == "rolled back"


def test_those_who_queued_while_it_warmed_up_say_nothing_of_its_latency() -> None:
    bench = Bench(Stage("share", 0.5))
    bench.canary.holds = True
    bench.ask(600)
    bench.canary.took = SECOND
    bench.canary.release(*range(1, 61))
    assert bench.trial.report()["state"] == "running", bench.said
    bench.canary.took = 10 * MILLISECOND
    bench.canary.release()
    bench.canary.holds = False
    bench.ask(100)
    assert bench.trial.state == "promoted"


def test_once_it_has_passed_only_what_is_known_to_be_worse_ends_it() -> None:
    draws = random.Random(1)  # noqa: S311
    bench = Bench(Stage("share", 0.5), promote=False)
    bench.canary.answers = lambda body: BROKEN if draws.random() < 0.02 else same(body)
    bench.stable.answers = lambda body: BROKEN if draws.random() < 0.01 else same(body)
    bench.ask(40_000)
    assert bench.trial.report()["state"] == "running", bench.said
    bench.canary.answers = lambda _: BROKEN
    bench.ask(1000)
    assert bench.trial.state == "rolled back", "however long it has been good"


async def emptied() -> None:
    bench = Bench(Stage("share", 0.5))
    bench.stable.holds = bench.canary.holds = True
    bench.ask(2)
    empty = asyncio.ensure_future(bench.trial.drained())
    await asyncio.sleep(0.01)
    assert not empty.done()
    bench.canary.answers = lambda _: BROKEN
    bench.canary.release()
    bench.stable.release(1)
    await asyncio.sleep(0.01)
    assert not empty.done(), "stable is asked what the canary has failed at"
    bench.stable.release()
    await asyncio.wait_for(empty, 1)


def test_it_is_empty_once_everybody_is_answered() -> None:
    asyncio._set_running_loop(None)
    asyncio.run(emptied())


def test_when_it_ends_what_nobody_waits_for_is_asked_no_more() -> None:
    ends: list[Callable[[Trial], None]] = [lambda trial: trial.end(False, "so"), Trial.close]
    for end in ends:
        bench = Bench(Stage("shadow", 1.0))
        bench.canary.holds = True
        bench.ask(3)
        end(bench.trial)
        assert sorted(bench.canary.cancelled) == [1, 2, 3]
        bench.ask(3)
        assert len(bench.canary.asked) == 3


async def recorded(path: Path, **rules: Any) -> Bench:
    bench = Bench(Stage("replay"), replay=str(path), **rules)
    await asyncio.wait_for(asyncio.shield(bench.trial.ended), 10)
    return bench


def test_what_was_recorded_is_asked_of_both(tmp_path: Path) -> None:
    asyncio._set_running_loop(None)
    path = tmp_path / "asked.jsonl"
    told: list[Any] = []
    recorder = Recorder(Played(same), path, 0.5, 10_000, lambda line: None)
    for body in (*(b"%d" % number for number in range(10)), b"\xff", b"\xfe"):
        recorder.ask(body, told.append)
    recorder.close()
    assert len(told) == 12
    assert list(read_recorded(str(path))) == [b"1", b"3", b"5", b"7", b"9", b"\xfe"]
    assert path.stat().st_mode & 0o777 == 0o600
    bench = asyncio.run(recorded(path))
    assert sorted(bench.canary.asked) == sorted(bench.stable.asked) == sorted(read_recorded(str(path)))
    assert bench.trial.state == "promoted"
    path.write_text('{"body": "1"}\n{"body": 2}\n')
    with pytest.raises(InputError, match="line 2 is no recorded request"):
        list(read_recorded(str(path)))
    bench = asyncio.run(recorded(path))
    assert (bench.trial.state, bench.said[-1].partition(": ")[2][:29]) == (
        "rolled back",
        "the canary is rolled back: " + str(path)[:2],
    )


def test_a_full_file_takes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    for _ in range(2):
        recorder = Recorder(Played(same), path, 1.0, 200, lambda line: None)
        for _ in range(100):
            recorder.ask(b"21", lambda told: None)
        recorder.close()
    assert 0 < path.stat().st_size <= 200
    with pytest.raises(InputError, match="cannot be recorded"):
        Recorder(Played(same), tmp_path / "no" / "folder", 1.0, 200, lambda line: None)


def test_both_versions_are_told_who_asks() -> None:
    bench = Bench(Stage("share", 0.5))
    for _ in range(2):
        bench.trial.ask(b"1", bench.told.append, asker=Asker("ann"))
    assert bench.stable.askers == bench.canary.askers == [Asker("ann")]


def test_what_is_no_file_or_has_no_lines_is_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        with pytest.raises(InputError, match="are in a file"):
            list(read_recorded(path))
    monkeypatch.setattr(recording, "MOST_LINE", 100)
    (tmp_path / "long").write_text('{"body": "' + "1" * 200 + '"}')
    with pytest.raises(InputError, match="line 1 is no recorded request: it has more than"):
        list(read_recorded(str(tmp_path / "long")))


def test_of_recorded_requests_no_more_are_read_than_are_asked(tmp_path: Path) -> None:
    asyncio._set_running_loop(None)
    path = tmp_path / "asked.jsonl"
    path.write_text('{"body": "1"}\n' * 2000 + '{"body": 2}\n')
    bench = asyncio.run(recorded(path))
    assert "line 2001" in bench.said[-1] and len(bench.canary.asked) >= 1990, "what is wrong is found when it is read"


async def overloaded(path: Path, **answers: Callable[[bytes], Answer | Refuse]) -> Bench:
    bench = Bench(Stage("replay"), replay=str(path))
    for version, answer in answers.items():
        getattr(bench, version).answers = answer
    await asyncio.wait_for(asyncio.shield(bench.trial.ended), 10)
    return bench


def test_where_stable_has_no_time_for_recorded_requests_the_canary_is_not_blamed(tmp_path: Path) -> None:
    asyncio._set_running_loop(None)
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(f'{{"body": "{number}"}}\n' for number in range(100)))

    def busy(body: bytes) -> Answer | Refuse:
        return Refuse(1, "full", "many wait already") if int(body) % 5 == 0 else same(body)

    assert asyncio.run(overloaded(path, stable=busy)).trial.state == "promoted"


def test_with_recorded_requests_as_well_it_is_ended_as_soon_as_it_is_known_to_be_worse(tmp_path: Path) -> None:
    asyncio._set_running_loop(None)
    path = tmp_path / "asked.jsonl"
    path.write_text('{"body": "1"}\n' * 1000)
    bench = asyncio.run(overloaded(path, canary=lambda _: BROKEN))
    assert bench.trial.state == "rolled back"
    assert len(bench.canary.asked) <= 20, "of a thousand"


def test_what_a_full_disk_took_half_of_is_taken_away_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write, room = tmp_path / "asked.jsonl", os.write, [100]
    said: list[str] = []

    def scarce(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        took = write(file, data[: room[0]])
        room[0] -= took
        return took

    monkeypatch.setattr("poise_serve.recording.os.write", scarce)
    recorder = Recorder(Played(same), path, 1.0, 10_000, said.append)
    for number in range(10):
        recorder.ask(b"%d" % number, lambda told: None)
    recorder.close()
    assert list(read_recorded(str(path))) == [b"0", b"1"], "whole lines, that can be asked again"
    assert said == ["requests are not recorded any more: No space left on device"]

"""Captures as the control plane keeps them: whole, bounded, or not at all."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from poise.control import captures
from poise.control.captures import capture
from poise.control.consoles import Consoles
from poise.control.plane import Plane
from poise.drivers.captures import captures_of, read_capture
from poise.model.captures import CaptureEnded, CaptureLine
from poise.model.messages import Attempt, Exec, FromConsole, Leave, Left, Said
from poise.model.tenants import HOME
from poise.units import SECOND

ATTEMPT = Attempt("j1.main", 2)


class _Plane:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def tell(self, node: str, message: Any) -> bool:
        self.told.append(message)
        return True


def taken(logs: Path, *said: tuple[str, bytes], code: int = 0, note: str = "", reads: int = 100) -> list[CaptureLine]:
    """What a client reads, of so many lines at most, while the node says this."""
    plane = _Plane()
    desk = Consoles(cast(Plane, plane))

    async def run() -> list[CaptureLine]:
        lines = capture(desk, logs, "n1", ATTEMPT, HOME, "stacks", SECOND)
        found = [await anext(lines)]
        name = plane.told[0].name
        answers: list[FromConsole] = [Said(name=name, stream=stream, data=data) for stream, data in said]
        for message in [*answers, Left(name=name, code=code, note=note)]:
            desk.hear("n1", message)
        if reads > 1:
            found += [line async for line in lines]
        await lines.aclose()
        assert isinstance(plane.told[0], Exec) and plane.told[0].capture == ("stacks", "1")
        assert isinstance(plane.told[-1], Leave)
        return found

    return asyncio.run(run())


def test_it_is_kept_under_the_next_number(tmp_path: Path) -> None:
    for number in (1, 2):
        (_, ended) = taken(tmp_path, ("out", b"a"), ("err", b"a warning"), ("out", b"b"))
        assert isinstance(ended, CaptureEnded) and ended.capture is not None
        assert (ended.capture.name, ended.capture.size) == (f"main.2.capture-{number}.stacks.svg", 2)
        assert (ended.capture.task, ended.capture.epoch, ended.capture.kind) == ("j1.main", 2, "stacks")
    assert [one.name for one in captures_of(tmp_path, "j1")] == [
        f"main.2.capture-{number}.stacks.svg" for number in (1, 2)
    ]
    assert read_capture(tmp_path, "j1", "main.2.capture-2.stacks.svg") == b"ab"
    assert read_capture(tmp_path, "j1", "../j1/main.2.capture-2.stacks.svg") is None


@pytest.mark.parametrize(
    ("said", "code", "note", "message", "hint"),
    [
        ([("err", b'{"message": "no py-spy", "hint": "install it"}')], 3, "", "no py-spy", "install it"),
        ([("out", b"half")], 137, "its task has ended", "there is no capture: its task has ended", "again, while"),
        ([("err", b"Traceback: bad")], 1, "", "there is no capture: Traceback: bad", "again, while"),
        ([], 0, "", "there is no capture: exit code 0", "again, while"),
    ],
)
def test_it_is_dropped_and_says_why(
    tmp_path: Path, said: list[tuple[str, bytes]], code: int, note: str, message: str, hint: str
) -> None:
    (_, ended) = taken(tmp_path, *said, code=code, note=note)
    assert isinstance(ended, CaptureEnded) and ended.error is not None
    assert (ended.error.code, ended.error.message) == ("E170", message) and ended.error.hint.startswith(hint)
    assert not list((tmp_path / "j1").iterdir())


def test_one_that_grows_too_large_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "MOST_BYTES", 3)
    (_, ended) = taken(tmp_path, ("out", b"four"))
    assert isinstance(ended, CaptureEnded) and ended.error is not None and "more than 3 B" in ended.error.message
    assert not list((tmp_path / "j1").iterdir())


def test_nothing_is_left_of_one_that_nobody_waits_for(tmp_path: Path) -> None:
    assert len(taken(tmp_path, ("out", b"some"), reads=1)) == 1
    assert not list((tmp_path / "j1").iterdir())

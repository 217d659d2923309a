"""The file of messages stays small, whoever makes the processes of a home say something."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import uvloop

from poise.drivers import messages
from poise.drivers.messages import AT_FIRST, EVERY, Seldom, turn_over
from unit.control.open_door import entered


class Told(logging.Handler):
    """What passes."""

    def __init__(self, seldom: Seldom) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(seldom)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_of_many_messages_alike_few_are_told_and_the_others_counted() -> None:
    now = 0.0
    told = Told(Seldom(lambda: now))
    log = logging.Logger("of a test")
    log.addHandler(told)
    for number in range(1000):
        log.warning("node %d is odd", number)
        log.warning("something else") if number == 500 else None
    assert len(told.lines) == AT_FIRST + 1
    assert "something else" in told.lines
    now += EVERY
    for _ in range(2):
        log.warning("node %d is odd", 7)
    assert told.lines[AT_FIRST + 1 :] == [f"node 7 is odd (and {1000 - AT_FIRST} more like it)"]
    now += 2 * AT_FIRST * EVERY
    for number in range(AT_FIRST):
        log.warning("node %d is odd", number)
    assert len(told.lines) == 2 * AT_FIRST + 2, "it is quiet again, and all is told"


def test_kinds_of_messages_without_end_take_no_memory() -> None:
    seldom = Seldom(lambda: 0.0)
    for number in range(3 * messages.MOST_KINDS):
        seldom.filter(logging.LogRecord("x", logging.WARNING, "", 0, f"kind {number}", (), None))
    assert len(seldom._kinds) <= messages.MOST_KINDS


def test_whoever_talks_nonsense_without_a_token_fills_no_log(tmp_path: Path) -> None:
    told = Told(Seldom())

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing has come through")

    async def use() -> None:
        async with entered(never, tmp_path / "sock"):
            for nonsense in (b"\x16\x03\x01 nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
                for _ in range(50):
                    reader, writer = await asyncio.open_unix_connection(tmp_path / "sock")
                    writer.write(nonsense)
                    assert await reader.read() is not None
                    writer.close()

    logging.getLogger().addHandler(told)
    try:
        uvloop.run(use())
    finally:
        logging.getLogger().removeHandler(told)
    assert 0 < len(told.lines) <= 2 * AT_FIRST


def test_a_file_that_has_grown_is_begun_anew_while_it_is_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "KEEP_BYTES", 10)
    file = tmp_path / "poise.log"
    turn_over(file)
    with file.open("ab", buffering=0) as out:
        out.write(b"0123456789")
        turn_over(file)
        assert not (tmp_path / "poise.log.1").exists()
        out.write(b"first\n")
        turn_over(file)
        out.write(b"then\n")
    assert (tmp_path / "poise.log.1").read_bytes() == b"0123456789first\n"
    assert file.read_bytes() == b"then\n"
    assert sorted(left.name for left in tmp_path.iterdir()) == ["poise.log", "poise.log.1"]
    (tmp_path / "poise.log.1").unlink()
    (tmp_path / "poise.log.1").mkdir()  # as with a full disk: what it held cannot be kept
    file.write_bytes(bytes(11))
    turn_over(file)
    assert file.read_bytes() == b""
    assert sorted(left.name for left in tmp_path.iterdir()) == ["poise.log", "poise.log.1"]

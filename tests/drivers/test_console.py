"""A keeper's command that is given input or a terminal, and commands that run beside it."""

import base64
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from drivers.test_keeper import MILLISECOND, PATH, SECOND, Line, Open, alive, connect, wait_until
from poise.drivers.logs import last_lines, piece, read

__all__ = ["connect"]

SIZE = 40 << 16 | 100


def feed(line: Line, task: Any, at: int = 0, data: bytes = b"", **more: Any) -> None:
    whose = task if task.startswith("x") else [f"j1.{task}", 1]
    line.say("feed", whose, {"at": at, "data": base64.b64encode(data).decode(), **more})


def written(line: Line, task: str) -> bytes:
    path = line.logs / f"{task}.out"
    return path.read_bytes() if path.exists() else b""


def test_input_reaches_the_command_in_order_and_once(connect: Open) -> None:
    line = connect()
    line.shell("cat", "cat", stdin=True)
    line.until("started")
    feed(line, "cat", 0, b"hello ")
    assert line.until("fed", "cat")[2:] == [6, True]
    feed(line, "cat", 0, b"hello wor")  # said again, and more of it
    assert line.until("fed", "cat")[2:] == [9, True]
    feed(line, "cat", 20, b"too early")
    assert line.until("fed", "cat")[2:] == [9, True]
    feed(line, "cat", 9, b"ld\n", end=True)
    assert line.ending()["outcome"] == "done"
    assert written(line, "cat") == b"hello world\n"


def test_much_input_waits_for_the_command(connect: Open) -> None:
    line = connect()
    line.shell("sum", "sleep 0.3; cat | wc -c", stdin=True)
    line.until("started")
    sent, piece = 0, bytes(300_000)
    while sent < 3_000_000:
        feed(line, "sum", sent, piece)
        sent = line.until("fed", "sum")[2]
    feed(line, "sum", sent, b"", end=True)
    assert line.ending()["outcome"] == "done"
    assert written(line, "sum") == b"3000000\n"


def test_a_command_that_reads_no_more_says_so(connect: Open) -> None:
    line = connect()
    line.shell("head", "head -c 3; exec <&-; sleep 60", stdin=True)
    line.until("started")
    feed(line, "head", 0, b"abcdef")
    assert line.until("fed", "head")[2:] == [6, True]
    taken, wanted = 6, True
    while wanted:
        feed(line, "head", taken, b"x")
        taken, wanted = line.until("fed", "head")[2:]
    assert written(line, "head") == b"abc"


def test_input_survives_the_agent(connect: Open) -> None:
    first = connect()
    first.shell("cat", "cat", stdin=True)
    first.until("started")
    feed(first, "cat", 0, b"one ")
    first.until("fed", "cat")
    first.close()
    second = connect()
    feed(second, "cat")
    assert second.until("fed", "cat")[2:] == [4, True]
    feed(second, "cat", 4, b"two", end=True)
    assert second.ending()["outcome"] == "done"
    assert written(second, "cat") == b"one two"


def test_without_input_there_is_none(connect: Open) -> None:
    line = connect()
    line.shell("cat", "cat; echo over")
    assert line.ending()["outcome"] == "done"
    assert written(line, "cat") == b"over\n"


def test_a_terminal_has_a_size_an_echo_and_job_control(connect: Open) -> None:
    line = connect()
    line.shell(
        "tty", "test -t 0 && test -t 1 && test -t 2 && stty size && tty >/dev/tty && read x && stty size", tty=SIZE
    )
    line.until("started")
    wait_until(lambda: b"40 100" in written(line, "tty"))
    feed(line, "tty", 0, b"typed\r", size=50 << 16 | 120)
    assert line.ending()["outcome"] == "done"
    text = written(line, "tty")
    assert b"typed\r\n" in text
    assert text.endswith(b"50 120\r\n")


def test_ctrl_c_at_a_terminal_interrupts_what_runs_in_it(connect: Open) -> None:
    line = connect()
    line.shell("tty", "echo ready; exec sleep 60", tty=SIZE)
    line.until("started")
    wait_until(lambda: b"ready" in written(line, "tty"))
    feed(line, "tty", 0, b"\x03")
    ending = line.ending()
    assert (ending["outcome"], ending["signal"]) == ("signal", signal.SIGINT)


def test_a_terminal_hangs_up_when_nobody_is_there_any_more(connect: Open) -> None:
    line = connect()
    line.shell("tty", "trap 'echo hung up > gone; exit 3' HUP; echo ready; sleep 60", tty=SIZE, folder=str(line.folder))
    line.until("started")
    wait_until(lambda: b"ready" in written(line, "tty"))
    feed(line, "tty", hold=50 * MILLISECOND)
    ending = line.ending()
    assert "hung up" in ending["note"]
    assert (line.folder / "gone").read_text() == "hung up\n"


def test_a_terminal_without_a_hold_stays(connect: Open) -> None:
    line = connect()
    line.shell("tty", "echo ready; read x; echo got $x", tty=SIZE)
    line.until("started")
    feed(line, "tty", hold=30 * SECOND)
    feed(line, "tty", hold=0)
    line.close()
    again = connect()
    feed(again, "tty", 0, b"it\r")
    assert again.ending()["outcome"] == "done"
    assert written(again, "tty").endswith(b"got it\r\n")


def test_all_that_a_terminal_was_told_is_in_the_log(connect: Open) -> None:
    line = connect()
    line.shell("tty", "seq 1 20000", tty=SIZE)
    assert line.ending()["outcome"] == "done"
    assert written(line, "tty").split() == [b"%d" % number for number in range(1, 20001)]


# --- beside ----------------------------------------------------------------------------------------------------------


def said(line: Line, name: str) -> tuple[dict[str, bytes], int, str]:
    """All that a command beside wrote, its exit code, and the note."""
    text = {"out": b"", "err": b""}
    while True:
        message = line.hear()
        if message[0] == "said" and message[1] == name:
            data = base64.b64decode(message[3])
            text[message[2]] += data
            line.say("credit", name, len(data))
        elif message[0] == "left" and message[1] == name:
            return text, message[2], message[3]


def beside(line: Line, name: str, script: str, **more: Any) -> None:
    line.say("exec", name, ["j1.main", 1], {"argv": ["/bin/sh", "-c", script], **more})


@pytest.fixture
def line(connect: Open) -> Line:
    line = connect()
    line.shell("main", "sleep 60", folder=str(line.folder), env={"PATH": PATH, "COLOUR": "red"})
    line.until("started")
    return line


def test_a_command_beside_has_the_folder_and_the_environment(line: Line) -> None:
    beside(line, "x1", "pwd; echo $COLOUR $MORE; echo oh >&2; cat; exit 7", env={"MORE": "blue"})
    assert said(line, "x1") == ({"out": f"{line.folder}\nred blue\n".encode(), "err": b"oh\n"}, 7, "")


def test_a_command_beside_is_given_input(line: Line) -> None:
    beside(line, "x1", "cat", stdin=True)
    feed(line, "x1", 0, b"hello", end=True)
    assert said(line, "x1") == ({"out": b"hello", "err": b""}, 0, "")


def test_a_command_beside_may_have_a_terminal(line: Line) -> None:
    beside(line, "x1", "stty size; read x; kill -INT $$", tty=SIZE)
    feed(line, "x1", 0, b"go\r")
    text, code, _ = said(line, "x1")
    assert b"40 100\r\n" in text["out"]
    assert code == 128 + signal.SIGINT


def test_who_does_not_read_holds_up_a_command_beside_and_nothing_else(line: Line) -> None:
    beside(line, "x1", "yes | head -c 4000000")
    time.sleep(0.3)
    beside(line, "x2", "echo quick")
    seen = b""
    while (message := line.hear())[:2] != ["left", "x2"]:
        if message[:2] == ["said", "x1"]:
            seen += base64.b64decode(message[3])
    assert len(seen) <= 1 << 18
    line.say("credit", "x1", len(seen))
    text, code, _ = said(line, "x1")
    assert (len(seen) + len(text["out"]), code) == (4_000_000, 0)


@pytest.mark.parametrize(
    ("argv", "code", "note"), [(["no-such"], 127, "command not found"), (["/dev/null"], 126, "not executable")]
)
def test_what_cannot_be_run_beside_is_told(line: Line, argv: list[str], code: int, note: str) -> None:
    line.say("exec", "x1", ["j1.main", 1], {"argv": argv})
    left = line.until("left")
    assert left[2] == code
    assert note in left[3]


def test_there_is_nothing_beside_what_does_not_run(line: Line) -> None:
    line.say("exec", "x1", ["j1.other", 1], {"argv": ["true"]})
    assert line.until("left")[2] == 126


def test_only_so_many_run_beside(line: Line) -> None:
    for number in range(17):
        beside(line, f"x{number}", "sleep 60")
    assert line.until("left")[1:3] == ["x16", 126]


def test_a_command_beside_ends_with_its_task(line: Line) -> None:
    beside(line, "x1", "echo $$; sleep 60")
    pid = int(base64.b64decode(line.until("said")[3]))
    line.say("stop", ["j1.main", 1])
    assert line.until("left")[1:] == ["x1", 137, "its task has ended"]
    assert line.ending()["outcome"] == "stopped"
    assert not alive(pid)


def test_a_command_beside_that_is_gone_before_its_task_is_says_the_same(connect: Open) -> None:
    """The memory of the task takes a while to give back, once both are killed."""
    line = connect()
    line.run("main", sys.executable, "-c", "import time; x = b'x' * (500 << 20); print(1, flush=True); time.sleep(60)")
    wait_until(lambda: bool(written(line, "main")))
    beside(line, "x1", "echo here; sleep 60")
    line.until("said")
    line.say("stop", ["j1.main", 1])
    assert line.until("left")[1:] == ["x1", 137, "its task has ended"]


@pytest.mark.parametrize("script", ["echo $$; sleep 60", "trap '' HUP; echo $$; while :; do sleep 1; done"])
@pytest.mark.parametrize("tty", [0, SIZE])
def test_a_command_beside_ends_with_who_asked_for_it(line: Line, connect: Open, script: str, tty: int) -> None:
    beside(line, "x1", script, tty=tty)
    pid = int(base64.b64decode(line.until("said")[3]))
    line.close()
    wait_until(lambda: not alive(pid))
    again = connect()
    assert again.held
    beside(again, "x1", "echo here")
    assert said(again, "x1")[0]["out"] == b"here\n"


def test_memory_of_a_command_beside_counts(connect: Open) -> None:
    line = connect()
    line.shell("main", "sleep 60", memory=50 << 20)
    line.until("started")
    with contextlib.suppress(ValueError):
        beside(line, "x1", "head -c 200000000 /dev/zero | tail -c 190000000 | sleep 60")
    assert line.ending()["outcome"] == "oom"


def test_no_end_is_left_open(line: Line) -> None:
    open_before = len(list(Path(f"/proc/{line.pid}/fd").iterdir()))
    for number in range(20):
        beside(line, f"x{number}", "echo out; echo err >&2; cat", stdin=True, tty=SIZE if number % 2 else 0)
        feed(line, f"x{number}", 0, b"in\r", end=True)
        said(line, f"x{number}")
    assert len(list(Path(f"/proc/{line.pid}/fd").iterdir())) == open_before


# --- a file of the user's --------------------------------------------------------------------------------------------


def test_a_file_gets_a_copy_of_what_is_written(connect: Open) -> None:
    line = connect()
    path = line.folder / "new" / "copy"
    line.shell("main", "echo out; echo err >&2; read x; echo last", stdin=True, output=str(path))
    line.until("started")
    wait_until(lambda: path.exists() and sorted(path.read_bytes().split()) == [b"err", b"out"])
    feed(line, "main", 0, b"go\n")
    assert line.ending()["outcome"] == "done"
    assert path.read_bytes().endswith(b"last\n")
    assert written(line, "main") == b"out\nlast\n"
    line.shell("next", "echo again", output=str(path), append=True)
    assert line.ending()["outcome"] == "done"
    assert path.read_bytes().endswith(b"last\nagain\n")
    line.shell("anew", "echo anew", output=str(path))
    assert line.ending()["outcome"] == "done"
    assert path.read_bytes() == b"anew\n"


def test_a_file_has_all_of_what_the_log_has_lost(connect: Open) -> None:
    line = connect()
    path = line.folder / "copy"
    line.shell(
        "main", "for n in 1 2 3 4 5; do head -c 1000000 /dev/zero; sleep 0.3; done", output=str(path), bound=2**20
    )
    assert line.ending()["outcome"] == "done"
    assert path.stat().st_size == 5_000_000
    assert (line.logs / "main.out").stat().st_blocks * 512 <= 2**20 + 2**16


def test_a_hole_in_the_log_is_not_copied(connect: Open) -> None:
    line = connect()
    path = line.folder / "copy"
    script = "echo one; truncate -s 4G /proc/self/fd/1; echo two; echo error >&2; sleep 60"
    line.shell("main", script, output=str(path))
    wait_until(lambda: read(path).endswith(b"error\n"))
    line.say("stop", ["j1.main", 1])
    ending = line.ending()
    assert (ending["outcome"], ending.get("note")) == ("stopped", None)
    assert path.stat().st_size < 2**20
    assert sorted(path.read_bytes().replace(b"\0", b"").split()) == [b"error", b"one", b"two"]
    log = line.logs / "main.out"
    assert log.stat().st_size == 2**32 + 4
    assert piece(log, 2**20, 100) == (2**32, b"two\n")
    assert piece(log, last_lines(log, 1), 100) == (2**32, b"two\n")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stop_ends_a_command_whose_output_is_still_copied(connect: Open, stopped: bool) -> None:
    line = connect()
    path, go = line.folder / "copy", line.folder / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.01; done; head -c 30000000 /dev/zero"
    line.shell("main", script, output=str(path), bound=2**20)
    pid = line.until("started")[2]
    os.kill(line.pid, signal.SIGSTOP)
    go.touch()
    wait_until(lambda: not alive(pid))
    if stopped:
        line.say("stop", ["j1.main", 1])
    os.kill(line.pid, signal.SIGCONT)
    ending = line.ending()
    assert ("before the rest was copied" in ending.get("note", "")) == stopped
    assert (path.stat().st_size < 30_000_000) == stopped


@pytest.mark.parametrize("name", ["", "fifo", "/dev/null", "/proc/none/file"])
def test_where_no_file_can_be_written_the_command_runs_all_the_same(connect: Open, name: str) -> None:
    line = connect()
    os.mkfifo(line.folder / "fifo")
    line.shell("main", "echo out", output=str(line.folder / name))
    ending = line.ending()
    assert ending["outcome"] == "done"
    assert "is not written" in ending["note"]
    assert written(line, "main") == b"out\n"

"""The keeper as a process: what it does with commands, signals, limits, logs and its journal."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from poise.drivers import keeper
from poise.drivers.logs import Moments
from poise.drivers.system import Cgroups, probe_cgroups

PROGRAM = keeper.__file__
PATH = "/usr/local/bin:/usr/bin:/bin"
MILLISECOND = 1_000_000
SECOND = 1000 * MILLISECOND


class Line:
    """A connection to a keeper, as an agent has it."""

    def __init__(self, folder: Path, name: str = "slot-0", cgroup: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(exist_ok=True)
        command = [sys.executable, "-I", "-S", "-c", keeper.START, PROGRAM, str(folder), name]
        where, end = os.open(folder, os.O_PATH), time.monotonic() + 8
        while True:
            self.code = subprocess.run(command, check=False).returncode
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(8)
            self.file = self.socket.makefile("rb")
            try:
                self.socket.connect(f"/proc/self/fd/{where}/{name}.sock")
                self.say("hello", {"spare": f"{self.logs}/.", "cgroup": cgroup})
                while (greeting := self.hear())[0] != "keeper":
                    pass  # something ended before the keeper read the greeting; it is told again
                self.pid = greeting[2]
                break
            except (ConnectionError, EOFError):  # a fork of a killed keeper has its lock and listens a moment longer
                self.close()
                if self.code != 3 or time.monotonic() > end:
                    raise
        os.close(where)
        self.held: list[Any] = []
        self.ended: list[Any] = []
        while (message := self.hear())[0] != "whole":
            (self.held if message[0] == "held" else self.ended).append(message)

    def say(self, *message: Any) -> None:
        self.socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def hear(self) -> Any:
        line = self.file.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    def run(self, task: str, *argv: str, **order: Any) -> None:
        order = {
            "argv": argv,
            "env": {"PATH": PATH},
            "out": str(self.logs / f"{task}.out"),
            "err": str(self.logs / f"{task}.err"),
        } | order
        self.say("run", [f"j1.{task}", 1], order, {"opaque": task})

    def shell(self, task: str, script: str, **order: Any) -> None:
        self.run(task, "/bin/sh", "-c", script, **order)

    def until(self, kind: str, task: str = "") -> Any:
        while True:
            message = self.hear()
            if message[0] == kind and task in ("", message[1][0].removeprefix("j1.")):
                return message

    def ending(self, task: str = "") -> dict[str, Any]:
        ending: dict[str, Any] = self.until("ended", task)[2]
        return ending

    def kill(self) -> None:
        """End the keeper with SIGKILL, and wait until its doors are closed: its listener is before this connection."""
        os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            while self.file.readline():
                pass

    def close(self) -> None:
        self.file.close()
        self.socket.close()


Open = Callable[..., Line]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Open]:
    lines: list[Line] = []

    def make(**options: Any) -> Line:
        lines.append(Line(tmp_path, **options))
        return lines[-1]

    yield make
    for pid in {line.pid for line in lines}:
        members = list(keeper.family(pid)) if keeper.start_ticks(pid) else []
        for one in [pid, *members]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
    for line in lines:
        line.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def test_a_keeper_is_the_listener_before_its_starter_ends(tmp_path: Path) -> None:
    late = "detach = it.detach; import time; it.detach = lambda: detach() and not time.sleep(0.3); sys.exit("
    (tmp_path / "logs").mkdir()
    start = [sys.executable, "-I", "-S", "-c", keeper.START.replace("sys.exit(", late), PROGRAM, str(tmp_path), "slow"]
    assert subprocess.run(start, check=False).returncode == 0
    where = os.open(tmp_path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"/proc/self/fd/{where}/slow.sock")
        os.close(where)
        listener = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    assert alive(listener), "an agent would mark a process that has ended"
    os.kill(listener, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


def entries(path: Path) -> list[Any]:
    lines = path.read_bytes().splitlines()
    assert all(line[:8] == b"%08x" % zlib.crc32(line[9:]) for line in lines)
    return [json.loads(line[9:]) for line in lines]


def kinds(path: Path) -> list[str]:
    """What the journal holds, but for "started": on a busy machine any command may go on for long enough to be it."""
    return [one[0] for one in entries(path) if one[0] != "started"]


def test_commands_run_in_order_and_their_codes_are_reported(connect: Open) -> None:
    line = connect()
    for code in (0, 3, 255):
        line.shell(f"exit{code}", f"exit {code}")
    endings = [line.until("ended") for _ in range(3)]
    assert [(one[1], one[2]["outcome"], one[2].get("code", 0)) for one in endings] == [
        (["j1.exit0", 1], "done", 0),
        (["j1.exit3", 1], "failed", 3),
        (["j1.exit255", 1], "failed", 255),
    ]
    assert all(one[2]["run"] > 0 and one[2]["cpu"] >= 0 and one[2]["peak"] > 1 << 20 for one in endings)


@pytest.mark.parametrize(("number", "outcome"), [(9, "killed"), (15, "signal"), (11, "signal")])
def test_a_signal_ends_a_command(connect: Open, number: int, outcome: str) -> None:
    line = connect()
    line.shell("x", f"kill -{number} $$")
    ending = line.ending()
    assert (ending["outcome"], ending["signal"]) == (outcome, number)


@pytest.mark.parametrize(
    ("argv", "code", "note"),
    [
        (["no-such-program"], 127, "`no-such-program`: command not found"),
        (["/no/such/program"], 127, "`/no/such/program`: no such file"),
        (["/etc/passwd"], 126, "`/etc/passwd`: not executable"),
        (["./script"], 126, "`./script`: its interpreter does not exist"),
        (["./text"], 126, "`./text`: not a program (no `#!` line?)"),
        ([], 127, "there is no command"),
    ],
)
def test_what_cannot_be_executed_says_why(connect: Open, tmp_path: Path, argv: list[str], code: int, note: str) -> None:
    for name, text in (("script", "#!/no/such/interpreter\n"), ("text", "hello\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    line = connect()
    line.run("x", *argv, folder=str(tmp_path))
    assert line.ending() == {"outcome": "unstartable", "code": code, "note": note}
    line.run("y", "true")
    assert line.ending("y")["outcome"] == "done"


def test_a_missing_folder_is_named(connect: Open) -> None:
    line = connect()
    line.run("x", "true", folder="/no/such/folder")
    assert line.ending() == {
        "outcome": "unstartable",
        "code": 126,
        "note": "the folder `/no/such/folder` does not exist",
    }


def test_an_order_that_makes_no_sense_ends_its_attempt_only(connect: Open) -> None:
    line = connect()
    line.run("x", "true", env={"A": 1})
    assert line.ending()["outcome"] == "unstartable"
    line.run("y", "true")
    assert line.ending()["outcome"] == "done"


def test_what_no_agent_says_is_passed_over(connect: Open) -> None:
    line = connect()
    for text in (b"{", b'["run",', b'["stop"]', b'["forget",3]', b"7", b'["unknown"]', b"\xff\x00"):
        line.socket.sendall(text + b"\n")
    line.run("x", "true")
    assert line.ending()["outcome"] == "done"


def test_folder_environment_affinity_and_inherited_state(connect: Open, tmp_path: Path) -> None:
    line = connect()
    cpu = min(os.sched_getaffinity(0))
    place = tmp_path / "place"
    place.mkdir()
    program = place / "say"
    program.write_text(
        "#!/bin/sh\npwd; env | sort; ls /proc/self/fd; grep -E '^(Cpus_allowed_list|Sig(Ign|Blk))' /proc/self/status"
    )
    program.chmod(0o755)
    line.run("x", "say", folder=str(place), cpus=[cpu], env={"PATH": f"{place}:{PATH}", "A": "b c"})
    line.run("y", "./say", folder=str(place))
    assert [line.ending()["outcome"], line.ending()["outcome"]] == ["done", "done"]
    said = (line.logs / "x.out").read_text().splitlines()
    assert said[0] == str(place)
    assert {"A=b c", f"PATH={place}:{PATH}"} <= set(said)
    assert [one for one in said if one.isdigit()] == ["0", "1", "2", "3"]  # 3 is the folder that ls reads
    assert f"Cpus_allowed_list:\t{cpu}" in said
    ignored = int(next(one for one in said if one.startswith("SigIgn:")).split()[1], 16)
    assert ignored & 0x7FFFFFFF == 0  # the C library ignores two of its own, 32 and 33, in whatever it spawns
    assert "SigBlk:\t0000000000000000" in said
    free = (line.logs / "y.out").read_text()
    assert "Cpus_allowed_list:\t" + cpus_text() in free


def cpus_text() -> str:
    text = Path("/proc/self/status").read_text()
    return text.partition("Cpus_allowed_list:\t")[2].partition("\n")[0]


def test_output_is_kept_apart_and_silence_leaves_no_file(connect: Open) -> None:
    line = connect()
    line.shell("talks", "echo one; echo two >&2")
    line.shell("silent", "exit 0")
    line.shell("slow", "sleep 0.05")
    line.shell("again", "echo three; sleep 0.03; echo four")
    for _ in range(4):
        line.until("ended")
    texts = {path.name: path.read_text() for path in line.logs.glob("[!.]*") if path.suffix in (".out", ".err")}
    assert texts == {"talks.out": "one\n", "talks.err": "two\n", "again.out": "three\nfour\n"}


def test_a_duplicate_is_ignored_while_held_running_and_ended(connect: Open, tmp_path: Path) -> None:
    line = connect()
    count = tmp_path / "count"
    for _ in range(3):
        line.shell("x", f"echo x >> {count}; sleep 0.05")
    line.until("started")
    line.shell("x", f"echo x >> {count}")
    line.ending()
    line.shell("x", f"echo x >> {count}")
    line.run("last", "true")
    assert line.until("ended")[1] == ["j1.last", 1]
    assert count.read_text() == "x\n"


def test_only_commands_that_go_on_are_announced(connect: Open) -> None:
    line = connect()
    for number in range(20):
        line.run(f"short{number}", "/bin/true")
    line.run("long", "sleep", "0.05")
    heard: list[Any] = []
    while not heard or heard[-1][:2] != ["ended", ["j1.long", 1]]:
        heard.append(line.hear())
    announced = [one[1][0] for one in heard if one[0] == "started"]
    assert announced[-1] == "j1.long" and len(announced) <= 5, "a busy machine may hold up a few of the short ones"


def boottime(ahead: int) -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + ahead


def test_a_command_is_killed_at_its_deadline_although_nobody_is_there(connect: Open, tmp_path: Path) -> None:
    line = connect()
    began = time.monotonic()
    line.shell("x", "trap '' TERM; echo $$; sleep 30 & wait", until=boottime(3 * SECOND))
    line.shell("y", "true", until=boottime(2 * SECOND))
    line.until("started", "x")
    line.close()
    out = tmp_path / "logs" / "x.out"
    wait_until(lambda: out.read_text().endswith("\n"))
    pid = int(out.read_text())
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not alive(pid), 20)
    assert 2.5 < time.monotonic() - began < 15
    again = connect()
    lost, returned = again.ended
    assert (lost[2]["outcome"], lost[2]["signal"], lost[2]["note"]) == ("lost", 9, "its lease ran out")
    assert (returned[2]["outcome"], returned[2]["note"]) == ("returned", "its lease ran out")


def test_a_deadline_that_is_moved_holds(connect: Open) -> None:
    line = connect()
    line.shell("x", "sleep 1.2", until=boottime(SECOND))
    line.say("renew", ["j1.x", 1], boottime(30 * SECOND))
    line.shell("y", "sleep 30", until=boottime(SECOND))
    line.say("renew", ["j1.y", 1], boottime(3 * SECOND))
    assert line.ending("x")["outcome"] == "done"
    ending = line.ending("y")
    assert (ending["outcome"], 50 * MILLISECOND < ending["run"] < 3 * SECOND) == ("lost", True)


def test_stop_is_gentle_first(connect: Open) -> None:
    line = connect()
    line.shell("x", "trap 'echo bye; exit 7' TERM; sleep 10 & wait", grace=5 * SECOND)
    line.until("started")
    wait_until(lambda: b"trap" in Path(f"/proc/{line_child(line)}/cmdline").read_bytes())
    time.sleep(0.02)
    line.say("stop", ["j1.x", 1])
    ending = line.ending()
    assert (ending["outcome"], ending["code"]) == ("stopped", 7)
    assert (line.logs / "x.out").read_text() == "bye\n"


def test_what_a_shell_runs_may_save_itself_though_the_shell_ends_at_once(connect: Open, tmp_path: Path) -> None:
    line = connect()
    saved = tmp_path / "saved"
    trains = f"trap 'sleep 0.3; echo all of it > {saved}; exit' TERM; echo ready; while :; do sleep 0.02; done"
    line.shell("x", f'sh -c "{trains}"; true', grace=10 * SECOND)
    wait_until(lambda: (line.logs / "x.out").exists() and (line.logs / "x.out").read_text() == "ready\n")
    line.say("stop", ["j1.x", 1])
    ending = line.ending()
    assert (ending["outcome"], ending["run"] < 9 * SECOND) == ("stopped", True)
    assert saved.read_text() == "all of it\n"


def line_child(line: Line) -> int:
    return min(keeper.family(line.pid))


def test_stop_kills_what_ignores_it_and_what_has_escaped(connect: Open, tmp_path: Path) -> None:
    line = connect()
    pids = tmp_path / "pids"
    escape = f"setsid sh -c 'trap \"\" TERM; echo $$ >> {pids}; exec sleep 30' & "
    line.shell(
        "x",
        f"trap '' TERM; {escape} (setsid sleep 30 & echo $! >> {pids}); echo $$ >> {pids}; sleep 30; sleep 30",
        grace=50 * MILLISECOND,
    )
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    line.say("stop", ["j1.x", 1])
    ending = line.ending()
    assert (ending["outcome"], ending["signal"]) == ("stopped", 9)
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_nothing_of_a_command_survives_its_end(connect: Open, tmp_path: Path) -> None:
    line = connect()
    pids = tmp_path / "pids"
    line.shell("x", f"setsid sleep 30 & echo $! > {pids}; (sleep 30 & echo $! >> {pids}); exit 0")
    assert line.ending()["outcome"] == "done"
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_a_command_that_goes_on_in_silence_has_hung(connect: Open, tmp_path: Path) -> None:
    """It is busy with a tenth of a core. A busy machine gives it more in three seconds, though not in each of them."""
    line = connect()
    given = {"hang": 300 * MILLISECOND, "grace": 20 * MILLISECOND}
    line.shell("busy", "while :; do :; done", progress=str(tmp_path / "busy"), **{**given, "hang": 3 * SECOND})
    busy = line.ending("busy")
    assert (busy["outcome"], busy["signal"]) == ("hung", signal.SIGTERM)
    assert re.fullmatch(r"silent for \d\.\d s, \d\.\d s of CPU used: busy", busy["note"])
    assert 3 * SECOND <= busy["run"] < 5 * SECOND
    line.shell("deaf", "trap '' TERM; sleep 60; sleep 60", progress=str(tmp_path / "deaf"), **given)
    deaf = line.ending("deaf")
    assert (deaf["outcome"], deaf["signal"]) == ("hung", signal.SIGKILL)
    assert re.fullmatch(r"silent for 0\.\d s, 0\.0 s of CPU used: idle", deaf["note"])
    assert not (tmp_path / "deaf").exists()


def test_a_command_is_stopped_at_its_time_limit_though_the_agent_is_gone(connect: Open, tmp_path: Path) -> None:
    line = connect()
    given = {"time_limit": 400 * MILLISECOND, "grace": 50 * MILLISECOND}
    begun = tmp_path / "begun"
    line.shell("deaf", f"trap '' TERM; touch {begun}; sleep 60; sleep 60", **given)
    wait_until(begun.exists)
    line.close()
    deaf = connect().ending("deaf")
    assert (deaf["outcome"], deaf["signal"], deaf["note"]) == (
        "timeout",
        signal.SIGKILL,
        "over its time limit of 0.4 s",
    )
    assert 400 * MILLISECOND <= deaf["run"] < 4 * SECOND


def test_a_time_limit_is_changed_while_the_command_runs_and_before(connect: Open, tmp_path: Path) -> None:
    line = connect()
    begun = tmp_path / "begun"
    given = {"time_limit": 60 * SECOND, "grace": 50 * MILLISECOND}
    line.shell("first", f"touch {begun}; sleep 60", **given)
    line.shell("next", "sleep 60", **given)
    line.shell("last", "sleep 0.3", time_limit=200 * MILLISECOND)
    wait_until(begun.exists)
    line.say("limit", ["j1.last", 1], 0)
    line.say("limit", ["j1.next", 1], 300 * MILLISECOND)
    line.say("limit", ["j1.first", 1], 400 * MILLISECOND)
    for name, limit in (("first", 0.4), ("next", 0.3)):
        ending = line.ending(name)
        assert (ending["outcome"], ending["note"]) == ("timeout", f"over its time limit of {limit:g} s")
        assert limit * SECOND <= ending["run"] < 10 * SECOND
    assert line.ending("last")["outcome"] == "done"


def test_a_paused_command_that_somebody_else_continues_is_stopped_again(connect: Open) -> None:
    line = connect()
    line.shell("x", "sleep 60; exit 3")
    pid = line.until("started")[2]
    wait_until(lambda: len(keeper.family(line.pid)) == 2)
    members = list(keeper.family(line.pid))
    line.say("pause", ["j1.x", 1], True)
    wait_until(lambda: all(map(keeper.is_stopped, members)))
    for one in members:
        os.kill(one, signal.SIGCONT)
    wait_until(lambda: all(map(keeper.is_stopped, members)))
    line.say("pause", ["j1.x", 1], False)
    wait_until(lambda: not any(map(keeper.is_stopped, members)))
    os.kill(next(one for one in members if one != pid), signal.SIGTERM)
    assert line.ending()["code"] == 3


def test_any_write_is_progress_and_the_next_agent_needs_to_do_nothing(connect: Open, tmp_path: Path) -> None:
    path = tmp_path / "steps"
    line = connect()
    steps = f"for i in 1 2 3 4 5; do sleep 0.2; echo $i > {path}; done; sleep 60"
    line.shell("x", steps, progress=str(path), hang=600 * MILLISECOND)
    wait_until(lambda: path.exists() and path.read_text() == "1\n")
    line.close()  # the agent is gone: the keeper goes on watching
    again = connect()
    assert [held[3][1] for held in again.held] == [["j1.x", 1]]
    ending = again.ending("x")
    assert ending["outcome"] == "hung"
    assert 1600 * MILLISECOND <= ending["run"] < 4 * SECOND


def test_a_keeper_that_slept_itself_does_not_take_its_sleep_for_the_commands(connect: Open, tmp_path: Path) -> None:
    line = connect()
    line.shell("x", "sleep 0.8", progress=str(tmp_path / "x"), hang=700 * MILLISECOND)
    time.sleep(0.1)
    os.kill(line.pid, signal.SIGSTOP)
    time.sleep(0.6)
    os.kill(line.pid, signal.SIGCONT)
    assert line.ending()["outcome"] == "done"


@pytest.mark.parametrize(
    ("script", "outcome"),
    [("kill -9 $$", "killed"), ("exit 137", "failed"), ("echo MemoryError >&2; exit 1", "failed")],
)
def test_without_evidence_nothing_has_run_out_of_memory(connect: Open, script: str, outcome: str) -> None:
    line = connect()
    line.shell("x", script, memory=64 << 20)
    assert line.ending()["outcome"] == outcome


def test_one_that_waits_is_handed_back(connect: Open) -> None:
    line = connect()
    line.run("x", "sleep", "30")
    line.run("y", "true")
    line.until("started")
    line.say("stop", ["j1.y", 1])
    assert line.until("ended")[1:] == [["j1.y", 1], {"outcome": "returned"}]
    line.say("stop", ["j1.x", 1])
    assert line.ending("x")["outcome"] == "stopped"


def test_the_result_is_text_of_json(connect: Open, tmp_path: Path) -> None:
    line = connect()
    texts = {
        "good": '{"loss": 0.25, "name": "ü\\"}"}',
        "bad": "{",
        "long": '"' + "x" * 70000 + '"',
        "none": None,
    }
    for task, text in texts.items():
        path = tmp_path / f"{task}.json"
        source = tmp_path / f"{task}.source"
        source.write_text(text or "")
        line.run(task, *(["cp", str(source), str(path)] if text else ["true"]), result=str(path))
    endings = {task: line.ending(task) for task in texts}
    assert endings["good"]["result"] == texts["good"]
    assert "result" not in endings["bad"]
    assert endings["bad"]["note"] == "the result is not JSON in UTF-8"
    assert endings["long"]["note"] == "the result is larger than 64 KiB"
    assert "note" not in endings["none"]
    assert not list(tmp_path.glob("*.json"))


EAT = "import time; x = bytearray(200 << 20); time.sleep(20)"


def test_watched_memory_ends_a_command_over_its_limit(connect: Open) -> None:
    line = connect()
    line.run("x", sys.executable, "-I", "-S", "-c", EAT, memory=64 << 20)
    ending = line.ending()
    assert (ending["outcome"], ending["limit"]) == ("oom", 64 << 20)
    assert ending["peak"] > 64 << 20
    line.run("y", sys.executable, "-I", "-S", "-c", "x = bytearray(8 << 20)", memory=64 << 20)
    assert line.ending()["outcome"] == "done"


def check_growth(line: Line, folder: Path) -> None:
    """A command gets a larger limit before it uses more. A smaller one changes nothing."""
    begun, go = folder / "begun", folder / "go"
    wait = (
        f"import os, time; open({str(begun)!r}, 'w').close()\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    eat = "x = bytearray(100 << 20); time.sleep(0.3)"
    line.run("grows", sys.executable, "-I", "-S", "-c", f"{wait}\n{eat}", memory=64 << 20)
    wait_until(begun.exists)
    line.say("limit", ["j1.grows", 1], 0, 256 << 20)
    line.say("limit", ["j1.grows", 1], 0, 32 << 20)
    line.say("try")
    while line.hear()[0] != "unfit":  # the answer comes after what was said before
        pass
    go.touch()
    assert line.ending("grows")["outcome"] == "done"


MIB = 1 << 20


def check_shrinking(line: Line, folder: Path) -> None:
    """The limit of a command is lowered to what it has never used, and not further. It says when that is too little,
    and gets more before it needs it. With its old limit, it says no more.
    """
    holds, first, second = folder / "holds", folder / "first", folder / "second"
    wait = f"import os, time\nx = [bytearray(20 << 20)]\nopen({str(holds)!r}, 'w').close()\n"
    for place, more in ((first, 93), (second, 150)):
        wait += f"while not os.path.exists({str(place)!r}): time.sleep(0.01)\nx.append(bytearray({more} << 20))\n"
    attempt = ["j1.shrinks", 1]
    line.run("shrinks", sys.executable, "-I", "-S", "-c", wait + "time.sleep(1.3)", memory=290 * MIB)
    wait_until(holds.exists)

    def shrunk(of: list[Any], memory: int) -> list[Any]:
        """What it answers; nothing if it keeps its limit."""
        line.say("shrink", of, memory)
        line.say("try")
        answer: list[Any] = []
        while (message := line.hear())[0] != "unfit":
            answer = message if message[0] == "sized" else answer
        return answer

    limit = 250  # until its memory was looked at after `holds`
    while not (told := shrunk(attempt, limit * MIB)) or told[3] < 20 * MIB:
        limit -= bool(told)
        time.sleep(0.05)
    told = shrunk(attempt, 128 * MIB)
    assert told[:3] == ["sized", attempt, 128 * MIB]
    assert (20 * MIB < told[3] < 112 * MIB, told[4]) == (True, False)
    assert shrunk(attempt, 16 * MIB) == shrunk(["j1.other", 1], 64 * MIB) == [], "it uses more than that"
    assert shrunk(attempt, 128 * MIB)[2] == 128 * MIB, "it has this limit already"
    first.touch()
    _, of, limit, used, short = line.until("sized")
    assert (of, limit, short) == (attempt, 128 * MIB, True)
    assert 112 * MIB < used <= 128 * MIB
    line.say("limit", attempt, 0, 290 * MIB)
    line.say("try")
    while line.hear()[0] != "unfit":
        pass
    second.touch()
    while (message := line.hear())[0] != "ended":
        assert message[0] != "sized", "it uses more than 7/8 of its limit, which is not a lowered one"
    assert message[2]["outcome"] == "done"


def test_a_watched_limit_is_lowered_while_the_command_runs(connect: Open, tmp_path: Path) -> None:
    check_shrinking(connect(), tmp_path)


def test_a_watched_limit_is_raised_while_the_command_runs(connect: Open, tmp_path: Path) -> None:
    check_growth(connect(), tmp_path)


@pytest.mark.root
def test_a_cgroup_ends_a_command_over_its_limit(connect: Open, tmp_path: Path) -> None:
    found = probe_cgroups(f"test-{os.getpid()}")
    if os.getuid() != 0 or not found.writable:
        pytest.skip(f"needs root and a writable memory cgroup: {found.why_not}")
    try:
        line = check_cgroup(connect, found)
        check_growth(line, tmp_path)
        check_shrinking(line, tmp_path)
        assert not [path for path in Path(found.parent).iterdir() if path.is_dir()]
    finally:
        Path(found.parent).rmdir()


def check_cgroup(connect: Open, found: Cgroups) -> Line:
    line = connect(cgroup={"version": found.version, "parent": found.parent, "home": found.home})
    line.run("x", sys.executable, "-I", "-S", "-c", EAT, memory=64 << 20)
    line.run("where", "cat", "/proc/self/cgroup", memory=64 << 20)
    ending = line.ending()
    assert (ending["outcome"], ending["limit"]) == ("oom", 64 << 20)
    assert 32 << 20 < ending["peak"] <= 64 << 20
    assert line.ending()["outcome"] == "done"
    assert f"/{Path(found.parent).name}/slot-0." in (line.logs / "where.out").read_text()
    assert Path(found.parent).name not in Path(f"/proc/{line.pid}/cgroup").read_text()
    return line


def test_the_score_of_the_keeper_is_not_inherited(connect: Open) -> None:
    line = connect()
    for task in ("x", "y"):
        line.shell(task, "sleep 0.02; cat /proc/self/oom_score_adj")
        line.ending(task)
        assert (line.logs / f"{task}.out").read_text() == Path("/proc/self/oom_score_adj").read_text()


def test_a_log_keeps_its_end_and_its_offsets(connect: Open) -> None:
    line = connect()
    chunk = "head -c 1048576 /dev/zero | tr '\\0' a; sleep 0.12; "
    line.shell("x", chunk * 4 + "echo end", bound=1 << 20)
    assert line.ending()["outcome"] == "done"
    status = (line.logs / "x.out").stat()
    assert status.st_size == (4 << 20) + 4
    assert status.st_blocks * 512 <= (1 << 20) + 8192
    with (line.logs / "x.out").open("rb") as file:
        assert file.read(16) == bytes(16)
        file.seek(-8, os.SEEK_END)
        assert file.read() == b"aaaaend\n"


def test_the_agent_goes_and_comes_back(connect: Open, tmp_path: Path) -> None:
    first = connect()
    go = tmp_path / "go"
    first.shell("x", f"while [ ! -e {go} ]; do sleep 0.01; done")
    first.run("y", "true")
    first.run("z", "false")
    pid = first.until("started")[2]
    first.close()
    second = connect()
    assert (second.code, second.pid) == (3, first.pid)
    assert [(one[1], one[3][1], one[3][3]) for one in second.held] == [
        (pid, ["j1.x", 1], {"opaque": "x"}),
        (0, ["j1.y", 1], {"opaque": "y"}),
        (0, ["j1.z", 1], {"opaque": "z"}),
    ]
    assert second.held[0][2] == keeper.start_ticks(pid)
    second.close()
    go.touch()
    wait_until(lambda: kinds(tmp_path / "slot-0.journal").count("ended") == 3)
    third = connect()
    assert [(one[1][0], one[2]["outcome"]) for one in third.ended] == [
        ("j1.x", "done"),
        ("j1.y", "done"),
        ("j1.z", "failed"),
    ]
    third.say("forget", [["j1.x", 1], ["j1.y", 1]])
    assert [one[1] for one in connect().ended] == [["j1.z", 1]]


def test_the_newest_agent_wins(connect: Open) -> None:
    first, second = connect(), connect()
    with pytest.raises((EOFError, ConnectionError)):
        first.say("quit")
        first.hear()
    second.run("x", "true")
    assert second.ending()["outcome"] == "done"


def test_signals_do_not_end_a_keeper_that_works(connect: Open) -> None:
    line = connect()
    line.run("x", "sleep", "0.1")
    line.until("started")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(line.pid, number)
    assert line.ending()["outcome"] == "done"
    os.kill(line.pid, signal.SIGTERM)
    with pytest.raises(EOFError):
        line.hear()


def test_quit_waits_for_the_work_and_leaves_nothing(connect: Open, tmp_path: Path) -> None:
    line = connect()
    line.run("x", "sleep", "0.05")
    line.run("y", "true")
    line.say("quit")
    line.until("ended", "y")
    with pytest.raises(EOFError):
        line.hear()
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "slot-0.journal"}  # two endings are unforgotten
    again = connect()
    assert len(again.ended) == 2
    again.say("forget", [one[1] for one in again.ended])
    again.say("quit")
    with pytest.raises(EOFError):
        again.hear()
    assert {path.name for path in tmp_path.iterdir()} == {"logs"}
    assert list(line.logs.iterdir()) == []


def test_intent_is_on_file_before_the_command_runs(connect: Open, tmp_path: Path) -> None:
    line = connect()
    line.run("x", "grep", "-c", '"starting",."j1.x",1', str(tmp_path / "slot-0.journal"))
    assert line.ending()["outcome"] == "done"
    assert kinds(tmp_path / "slot-0.journal") == ["keeper", "starting", "ended"]


@pytest.mark.parametrize("damage", ["torn", "flipped"])
def test_a_damaged_journal_gives_what_is_whole(connect: Open, tmp_path: Path, damage: str) -> None:
    line = connect()
    for task in ("x", "y", "z"):
        line.run(task, "true")
        line.ending(task)
    line.kill()
    with pytest.raises(EOFError):
        line.hear()
    journal = tmp_path / "slot-0.journal"
    data = bytearray(journal.read_bytes())
    if damage == "torn":
        del data[-10:]
    else:
        data[data.index(b'"done"') + 1] ^= 1
    journal.write_bytes(data)
    again = connect()
    unknown = "j1.z" if damage == "torn" else "j1.x"
    assert [(one[1][0], one[2]["outcome"]) for one in again.ended] == [
        (task, "lost" if task == unknown else "done") for task in ("j1.x", "j1.y", "j1.z")
    ]
    again.run("w", "true")
    again.ending("w")
    assert kinds(journal) == ["keeper", "ended", "ended", "ended", "starting", "ended"]


def test_what_an_earlier_keeper_began_or_ended_is_not_run_again_though_it_is_ordered_again(
    connect: Open, tmp_path: Path
) -> None:
    """The agent may not have heard of it when the keeper was killed."""
    line = connect()
    line.shell("done", f"echo >> {tmp_path}/done")
    line.ending("done")
    line.shell("begun", f"echo >> {tmp_path}/begun; exec sleep 60")
    pid = line.until("started")[2]
    wait_until(lambda: (tmp_path / "begun").exists())
    for killed in (line.pid, pid):  # as the agent does with what such a keeper leaves
        os.kill(killed, signal.SIGKILL)
    again = connect()
    for task in ("done", "begun"):
        again.shell(task, f"echo >> {tmp_path}/{task}")
    again.shell("next", "true")
    assert again.ending("next")["outcome"] == "done"
    assert [(tmp_path / task).read_text() for task in ("done", "begun")] == ["\n", "\n"]


def fill(line: Line, full: bool = True) -> None:
    """No file of the keeper can grow, as on a full disk; or again."""
    size = (line.folder / "slot-0.journal").stat().st_size
    resource.prlimit(line.pid, resource.RLIMIT_FSIZE, (size if full else resource.RLIM_INFINITY, -1))


def test_what_cannot_be_recorded_is_not_run_but_handed_back(connect: Open, tmp_path: Path) -> None:
    line = connect()
    line.run("first", "true")
    line.ending("first")
    fill(line)
    for task in ("x", "y"):
        line.run(task, "mkdir", str(tmp_path / task))
    for task in ("x", "y"):
        ending = line.ending(task)
        assert (ending["outcome"], "cannot be written: File too large" in ending["note"]) == ("returned", True)
    assert "nothing can be started" in line.until("unfit")[1]
    fill(line, full=False)
    wait_until(lambda: "j1.y" in (tmp_path / "slot-0.journal").read_text())
    line.run("z", "mkdir", str(tmp_path / "z"))
    assert line.ending("z")["outcome"] == "done"
    assert [(tmp_path / task).exists() for task in ("x", "y", "z")] == [False, False, True]


def test_a_deleted_journal_is_written_anew_before_anything_runs(connect: Open, tmp_path: Path) -> None:
    line = connect()
    line.run("x", "false")
    line.ending("x")
    (tmp_path / "slot-0.journal").unlink()
    line.run("y", "grep", '"starting",."j1.y",1', str(tmp_path / "slot-0.journal"))
    assert line.ending("y")["outcome"] == "done"
    line.kill()
    with contextlib.suppress(ConnectionResetError):  # until it is gone its socket takes connections
        while line.file.readline():
            pass
    assert [(one[1][0], one[2]["outcome"]) for one in connect().ended] == [("j1.x", "failed"), ("j1.y", "done")]


def test_an_ending_that_cannot_be_written_holds_the_slot(connect: Open, tmp_path: Path) -> None:
    line = connect()
    go = tmp_path / "go"
    line.shell("x", f"until test -e {go}; do sleep 0.01; done; exit 3")
    line.until("started", "x")
    fill(line)
    go.touch()
    assert line.ending("x")["code"] == 3
    line.run("y", "true")
    assert line.ending("y")["outcome"] == "returned"
    fill(line, full=False)
    wait_until(lambda: kinds(tmp_path / "slot-0.journal") == ["keeper", "starting", "ended", "ended"])
    line.kill()
    assert [(one[1][0], one[2]["outcome"]) for one in connect().ended] == [("j1.x", "failed"), ("j1.y", "returned")]


@pytest.mark.root
def test_an_ending_has_its_place_on_a_disk_that_fills_meanwhile(connect: Open, tmp_path: Path) -> None:
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", tmp_path]).returncode:
        pytest.skip("needs the right to mount")
    try:
        line = connect()
        go, elsewhere = tmp_path / "go", tmp_path / "full"
        result = tmp_path / "result.json"
        result.write_text(json.dumps("é" * 30_000, ensure_ascii=False))  # six bytes each in the journal
        line.shell("x", f"until test -e {go}; do sleep 0.01; done; exit 3", result=str(result))
        line.until("started", "x")
        go.touch()
        with contextlib.suppress(OSError), elsewhere.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        assert line.ending("x")["code"] == 3
        line.kill()
        line.close()
        again = connect()
        assert [(one[1][0], one[2]["code"]) for one in again.ended] == [("j1.x", 3)]
        again.run("y", "true")
        assert again.ending("y")["outcome"] == "returned"
        again.kill()
        again.close()
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_the_journal_is_bounded(connect: Open, tmp_path: Path) -> None:
    line = connect()
    journal = tmp_path / "slot-0.journal"
    filler = "x" * 60000
    for number in range(12):
        source = tmp_path / "source"
        source.write_text(json.dumps(filler))
        line.run(f"t{number}", "cp", str(source), str(tmp_path / "r.json"), result=str(tmp_path / "r.json"))
        line.ending()
        line.say("forget", [[f"j1.t{number}", 1]])
    line.run("last", "true")
    line.ending("last")
    assert journal.stat().st_size < keeper.JOURNAL_LIMIT + 100000
    assert [one[1][0] for one in connect().ended] == ["j1.last"]


@pytest.mark.timed
def test_a_keeper_is_small_and_starts_at_once(connect: Open) -> None:
    began = time.monotonic()
    line = connect()
    took = time.monotonic() - began
    resident = int(Path(f"/proc/{line.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 16 << 20
    assert took < 1.0


def test_a_long_folder_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    line = Line(folder)
    line.run("x", "true")
    assert line.ending()["outcome"] == "done"
    line.kill()
    line.close()


def test_it_is_noted_when_a_command_wrote(connect: Open) -> None:
    line = connect()
    before = time.time_ns()
    line.shell("talks", "for n in 1 2 3; do echo $n; sleep 0.5; done", env={"PATH": PATH})
    assert line.ending()["outcome"] == "done"
    moments = Moments(line.logs / "talks.out")
    times = [moments.at(offset)[0] for offset in (0, 2, 4)]
    assert times == sorted(set(times))
    assert before - SECOND < times[0] < times[2] <= time.time_ns()
    line.shell("brief", "echo once")
    assert line.ending()["outcome"] == "done"
    assert not (line.logs / "brief.out.times").exists(), "the file itself tells"

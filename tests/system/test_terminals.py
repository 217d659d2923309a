"""What people type and pipe: input, terminals, and commands beside those of jobs, as they are used."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest

from poise.client.asynchronous import AsyncClient
from poise.model.reports.streams import ExecEnd, ExecLine, ExecOutput, ExecStarted
from system.living import PATIENCE, POISE, Done, Living, alive, ended, kill, until

ROWS, COLUMNS = 33, 111


def piped(living: Living, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [POISE, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, cwd=living.work, env=living.environment(**more)
    )


def given(living: Living, data: bytes, *arguments: str) -> Done:
    """A command at the end of a pipe."""
    process = piped(living, *arguments)
    out, err = process.communicate(data, timeout=PATIENCE)
    return Done(process.returncode, out, err.decode())


def say(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


class Screen:
    """A terminal, and `poise` in it."""

    def __init__(self, living: Living, *arguments: str) -> None:
        self.mine, self.theirs = pty.openpty()
        self.resize(ROWS, COLUMNS)
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.process = subprocess.Popen(
            [POISE, *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            cwd=living.work,
            env=living.environment(TERM="vt100", PS1="ready> "),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.mine, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.mine, text)

    def until(self, text: bytes) -> bytes:
        """What is shown up to this text."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert select.select([self.mine], [], [], max(0, left))[0], self.seen
            self.seen += os.read(self.mine, 65536)
        shown, text, self.seen = self.seen.partition(text)
        return shown + text

    def code(self) -> int:
        """Its exit code; what it shows meanwhile is in `seen`."""

        def has_ended() -> bool:
            while select.select([self.mine], [], [], 0)[0]:
                self.seen += os.read(self.mine, 65536)
            return self.process.poll() is not None

        until(has_ended, "it ends", lambda: self.seen)
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is as it was"
        return self.process.returncode

    def hang_up(self) -> None:
        for fd in (self.mine, self.theirs):
            os.close(fd)

    def close(self) -> None:
        kill(self.process.pid)
        self.process.wait()
        with contextlib.suppress(OSError):
            self.hang_up()


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    screens: list[Screen] = []
    yield screens
    for screen in screens:
        screen.close()


def shell(living: Living, screens: list[Screen], *arguments: str) -> Screen:
    """A shell in a terminal, that waits to be told something."""
    screen = Screen(living, *arguments, "--env", "PS1", "--", "sh", "-i")
    screens.append(screen)
    screen.until(b"ready> ")
    return screen


# --- input -----------------------------------------------------------------------------------------------------------


def test_a_pipe_is_passed_on(shared: Living) -> None:
    assert given(shared, b"hi\n", "run", "--", "cat") == (0, b"hi\n", "")
    assert given(shared, b"", "run", "--", "cat") == (0, b"", "")
    much = os.urandom(3_000_000)
    assert given(shared, much, "run", "--", "cat") == (0, much, "")


def test_a_file_is_passed_on_from_where_it_is(shared: Living) -> None:
    path = shared.file("numbers", "one\ntwo\nthree\n")
    with path.open("rb", buffering=0) as file:
        file.seek(4)
        command = [POISE, "run", "--", "cat"]
        env = shared.environment()
        done = subprocess.run(command, stdin=file, cwd=shared.work, env=env, capture_output=True, check=True)
    assert done.stdout == b"two\nthree\n"


def test_without_input_there_is_none(shared: Living) -> None:
    assert shared.poise("run", "--", "cat") == (0, b"", "")


def test_input_comes_as_it_is_said(shared: Living) -> None:
    process = piped(shared, "run", "--", "cat")
    for text in (b"one\n", b"two\n"):
        say(process, text)
        assert line(process) == text
    assert ended(process) == (0, b"", "")


def test_a_command_need_not_read_its_input(shared: Living) -> None:
    assert given(shared, bytes(3_000_000), "run", "--", "head", "-c", "3") == (0, bytes(3), "")


def test_a_command_that_is_started_again_is_given_all_of_its_input_again(shared: Living) -> None:
    script = "if [ $POISE_EPOCH = 1 ]; then head -c 4; kill -9 $$; fi; cat"
    done = given(shared, b"0123456789", "run", "--", "sh", "-c", script)
    assert (done.code, done.out) == (0, b"01230123456789")


def test_rank_0_of_a_gang_is_given_the_input(shared: Living) -> None:
    done = given(shared, b"data", "run", "--workers", "2", "--cpu", "0.1", "--", "sh", "-c", "cat; cat <&0")
    assert (done.code, done.out) == (0, b"data")


def test_input_is_for_one_command(shared: Living) -> None:
    done = given(shared, b"data", "run", "--parts", "2", "--", "cat")
    assert (done.code, done.out) == (0, b"")
    assert "input is not passed on" in done.err
    refused = given(shared, b"data", "run", "--json", "-i", "--parts", "2", "--", "cat")
    assert refused.error["field"] == "--interactive"


@pytest.mark.parametrize(
    "victims", [("control",), pytest.param(("agent",), marks=pytest.mark.slow), ("control", "agent")]
)
def test_input_goes_on_whoever_is_killed(living: Living, victims: tuple[str, ...]) -> None:
    living.up()
    process = piped(living, "run", "--", "cat")
    say(process, b"before\n")
    assert line(process) == b"before\n"
    for victim in victims:
        kill(living.pid(victim))
    say(process, b"after\n")
    assert line(process) == b"after\n"
    assert ended(process).code == 0
    assert living.client().job("j1").tasks[0].epoch == 1


def test_a_job_goes_on_without_who_gave_it_input(shared: Living) -> None:
    process = piped(shared, "run", "--name", "alone", "--", "sh", "-c", "read x; echo $x; read y; echo $y")
    say(process, b"one\n")
    assert line(process) == b"one\n"
    process.kill()
    process.wait()
    client = shared.client()
    assert client.job("alone").status == "running"
    client.feed("alone", b"two\n", joins=True)
    assert client.wait("alone").exit_code == 0
    assert shared.poise("logs", "alone").out == b"one\ntwo\n"


# --- terminals -------------------------------------------------------------------------------------------------------


def test_a_shell_in_a_terminal(shared: Living, screens: list[Screen]) -> None:
    screen = shell(shared, screens, "run", "-it")
    screen.type(b"stty size; echo $TERM\r")
    screen.until(b"%d %d\r\nvt100\r\n" % (ROWS, COLUMNS))
    screen.resize(44, 99)
    screen.type(b"until stty size | grep -q '44 99'; do sleep 0.1; done; echo $((6 * 7)) resized\r")
    screen.until(b"42 resized")
    screen.type(b"echo $((6 * 7)) begins; sleep 600\r")
    screen.until(b"42 begins")
    screen.type(b"\x03")
    screen.until(b"ready> ")
    screen.type(b"exit 7\r")
    assert screen.code() == 7


def test_who_detaches_leaves_the_job_to_itself(shared: Living, screens: list[Screen]) -> None:
    screen = shell(shared, screens, "run", "-it", "--name", "left")
    screen.type(b"\x10\x10\x11")
    assert screen.code() == 0
    assert "poise: detached from" in screen.seen.decode()
    assert shared.client().job("left").status == "running"
    shared.poise("cancel", "left")
    assert shared.client().wait("left").status == "cancelled"


def test_a_terminal_that_is_closed_hangs_up(shared: Living, screens: list[Screen]) -> None:
    screen = shell(shared, screens, "run", "-it", "--name", "closed")
    screen.hang_up()
    report = shared.client().wait("closed")
    assert (report.exit_code, report.tasks[0].outcome) == (129, "signal")


def test_a_terminal_that_is_closed_while_its_job_waits_cancels_it(shared: Living, screens: list[Screen]) -> None:
    before = shared.poise("submit", "--hold", "--", "true").text.strip()
    screen = Screen(shared, "run", "-it", "--name", "waits", "--after-any", before, "--", "sh", "-i")
    screens.append(screen)
    until(lambda: any(job.name == "waits" for job in shared.client().jobs()), "it is submitted", shared.processes)
    screen.hang_up()
    until(lambda: shared.client().job("waits").status == "cancelled", "it is cancelled", shared.processes)
    shared.poise("cancel", before)


def test_a_terminal_whose_client_is_killed_hangs_up_and_a_job_that_waits_for_one_is_cancelled(
    shared: Living, screens: list[Screen]
) -> None:
    before = shared.poise("submit", "--hold", "--", "true").text.strip()
    waits = Screen(shared, "run", "-it", "--name", "deserted", "--after-any", before, "--", "sh", "-i")
    screens.append(waits)
    runs = shell(shared, screens, "run", "-it", "--name", "killed")
    waits.until(b"waits")
    waits.process.kill()
    runs.process.kill()
    report = shared.client().wait("killed")
    assert (report.exit_code, report.tasks[0].outcome) == (129, "signal")
    assert "hung up" in report.tasks[0].note
    assert shared.client().wait("deserted").status == "cancelled"
    shared.poise("cancel", before)


def test_a_terminal_survives_the_control_plane(living: Living, screens: list[Screen]) -> None:
    living.up()
    screen = shell(living, screens, "run", "-it")
    kill(living.pid("control"))
    screen.type(b"echo still $((6 * 7))\r")
    screen.until(b"still 42")
    kill(living.pid("agent"))
    screen.type(b"echo again $((6 * 7))\r")
    screen.until(b"again 42")
    screen.type(b"exit 3\r")
    assert screen.code() == 3


def test_without_a_terminal_none_is_passed_on(shared: Living) -> None:
    done = given(shared, b"data", "run", "--json", "-it", "--", "cat")
    assert (done.code, done.error["field"]) == (125, "--tty")
    assert given(shared, b"data", "exec", "--json", "-t", "nothing", "--", "cat").error["field"] == "--tty"


# --- attached --------------------------------------------------------------------------------------------------------


def test_who_attaches_gives_input_and_has_the_exit_code(shared: Living) -> None:
    script = "while read x; do echo got $x; done; exit 5"
    job = shared.poise("submit", "-i", "--", "sh", "-c", script).text.strip()
    client = shared.client()
    until(lambda: client.job(job).status == "running", "it runs")
    first = piped(shared, "attach", job)
    say(first, b"one\n")
    assert line(first) == b"got one\n"
    first.send_signal(signal.SIGINT)
    assert first.wait(PATIENCE) == 130
    first.communicate()
    assert client.job(job).status == "running"
    second = given(shared, b"two\nthree\n", "attach", "--tail", "1", job)
    assert second == (5, b"got one\ngot two\ngot three\n", "")


def test_who_attaches_sees_what_is_written(shared: Living) -> None:
    os.mkfifo(shared.work / "gate")
    job = shared.client().submit({"run": "read x < gate; echo now", "folder": str(shared.work)})
    until(lambda: shared.client().job(job).status == "running", "it runs")
    attached = shared.start("attach", "--tail", "1", "--json", job)
    (shared.work / "gate").write_text("go\n")
    done = ended(attached)
    assert (done.code, done.err, done.value["status"]) == (0, "now\n", "done")


def test_a_shell_is_attached_to_again(shared: Living, screens: list[Screen]) -> None:
    first = shell(shared, screens, "run", "-it", "--name", "again")
    first.type(b"x=$((6 * 7))\r")
    first.until(b"ready> ")
    first.type(b"\x10\x11")
    assert first.code() == 0
    second = Screen(shared, "attach", "again")
    screens.append(second)
    second.resize(20, 50)
    second.type(b"\r")
    second.until(b"ready> ")
    second.type(b"echo still $x; stty size\r")
    second.until(b"still 42\r\n20 50")
    second.type(b"exit 6\r")
    assert second.code() == 6


# --- beside ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(shared: Living) -> Iterator[str]:
    client = shared.client()
    job = client.submit({"run": ["sleep", "600"], "folder": str(shared.work), "env": {"COLOUR": "red"}})
    until(lambda: client.job(job).status == "running", "it runs")
    yield job
    client.cancel(job)
    client.wait(job)


def test_a_command_beside_a_job(shared: Living, job: str) -> None:
    script = "pwd; echo $COLOUR $MORE $POISE_JOB; echo oh >&2; exit 7"
    done = shared.poise("exec", "--env", "MORE=blue", job, "--", "sh", "-c", script)
    assert done == (7, f"{shared.work}\nred blue {job}\n".encode(), "oh\n")
    assert shared.poise("exec", job, "--", "sh", "-c", "taskset -p $$; taskset -p $PPID").text.count("mask: 1") in (
        0,
        2,
    )
    missing = shared.poise("exec", job, "--", "no-such-command")
    assert (missing.code, missing.err) == (127, "poise: `no-such-command`: command not found\n")


def test_input_and_a_command_beside_from_a_program_with_an_event_loop(shared: Living) -> None:
    async def program() -> tuple[list[ExecLine], int | None]:
        client = AsyncClient(shared.home)
        job = await client.submit({"run": ["cat"], "stdin": True})
        await asyncio.to_thread(until, lambda: shared.client().job(job).status == "running", "it runs")
        lines = [line async for line in client.exec(job, ["sh", "-c", "echo $POISE_JOB; exit 2"])]
        await client.feed(job, b"hello")
        return lines, (await client.wait(job)).exit_code

    (first, *others), code = asyncio.run(program())
    assert isinstance(first, ExecStarted)
    job = shared.client().jobs(latest=1)[0].id
    assert (others, code) == ([ExecOutput("out", f"{job}\n".encode()), ExecEnd(2)], 0)


def test_input_of_a_command_beside_a_job(shared: Living, job: str) -> None:
    much = os.urandom(3_000_000)
    assert given(shared, much, "exec", job, "--", "cat") == (0, much, "")


def test_a_shell_beside_a_job(shared: Living, job: str, screens: list[Screen]) -> None:
    screen = Screen(shared, "exec", "-it", "--env", "PS1=ready> ", job, "--", "sh", "-i")
    screens.append(screen)
    screen.until(b"ready> ")
    screen.type(b"stty size; echo $COLOUR\r")
    screen.until(b"%d %d\r\nred\r\n" % (ROWS, COLUMNS))
    screen.type(b"exit 5\r")
    assert screen.code() == 5


def test_a_command_beside_each_member_of_a_gang(shared: Living) -> None:
    client = shared.client()
    gang = client.submit({"run": ["sleep", "600"], "workers": 2, "resources": {"cpu": 0.1}})
    until(lambda: client.job(gang).counts == {"running": 2}, "it runs")
    told = [
        shared.poise("exec", *which, gang, "--", "sh", "-c", "echo $POISE_RANK").text for which in ((), ("--rank", "1"))
    ]
    assert told == ["0\n", "1\n"]
    assert shared.poise("exec", "--json", "--rank", "2", gang, "--", "true").error["message"].startswith("no rank 2")
    client.cancel(gang)
    client.wait(gang)


def test_a_command_beside_ends_with_its_job_and_with_who_asked(shared: Living) -> None:
    client = shared.client()
    job = client.submit({"run": ["sleep", "600"]})
    until(lambda: client.job(job).status == "running", "it runs")
    first, second = (shared.start("exec", job, "--", "sh", "-c", "echo $$; exec sleep 600") for _ in range(2))
    pids = [int(line(process)) for process in (first, second)]
    first.kill()
    first.communicate()
    until(lambda: not alive(pids[0]), "it has ended with who asked for it")
    assert alive(pids[1])
    client.cancel(job)
    done = ended(second)
    assert (done.code, done.err) == (137, "poise: its task has ended\n")
    refused = shared.poise("exec", "--json", job, "--", "true")
    assert (refused.code, refused.error["field"]) == (125, "job")


def test_a_command_beside_ends_with_the_control_plane_and_says_so(living: Living) -> None:
    living.up()
    client = living.client()
    job = client.submit({"run": ["sleep", "600"]})
    until(lambda: client.job(job).status == "running", "it runs")
    beside = living.start("exec", job, "--", "sh", "-c", "echo $$; exec sleep 600")
    pid = int(line(beside))
    kill(living.pid("control"))
    done = ended(beside)
    assert done.code == 125
    assert "hint:" in done.err
    until(lambda: not alive(pid), "it has ended")
    assert client.job(job).tasks[0].epoch == 1
    client.cancel(job)
    client.wait(job)


def test_a_signal_ends_a_command_beside(shared: Living, job: str) -> None:
    beside = shared.start("exec", job, "--", "sh", "-c", "echo $$; exec sleep 600")
    pid = int(line(beside))
    beside.send_signal(signal.SIGINT)
    assert ended(beside).code == 130
    until(lambda: not alive(pid), "it has ended")


# --- logs ------------------------------------------------------------------------------------------------------------


def test_logs_since_a_time_with_times_and_ranks(shared: Living) -> None:
    job = shared.client().submit({"run": "echo $POISE_RANK", "workers": 2, "resources": {"cpu": 0.1}})
    assert shared.client().wait(job).exit_code == 0
    assert sorted(shared.poise("logs", job).text.splitlines()) == ["[rank 0] 0", "[rank 1] 1"]
    assert sorted(shared.poise("logs", "--no-prefix", job).text.splitlines()) == ["0", "1"]
    assert shared.poise("logs", "--rank", "1", job).text == "1\n"
    timed = shared.poise("logs", "--rank", "1", "--timestamps", job).text
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 1\n", timed)
    assert shared.poise("logs", "--rank", "1", "--since", "1h", job).text == "1\n"
    assert shared.poise("logs", "--since", "2100-01-01T00:00:00Z", job).text == ""
    assert shared.poise("logs", "--json", "--since", "yesterday", job).error["field"] == "--since"
    assert shared.poise("logs", "--since", "2100-01-01", job).text == ""


def test_a_file_for_output(shared: Living) -> None:
    script = "echo out $POISE_EPOCH; echo err >&2; test $POISE_EPOCH = 2"
    done = shared.poise("run", "--output", "logs/%j.%r.txt", "--retries", "1", "--", "sh", "-c", script)
    assert (done.code, done.text) == (0, "out 1\nout 2\n")
    job = shared.client().jobs(latest=1)[0].id
    text = (shared.work / "logs" / f"{job}.0.txt").read_text()
    assert sorted(text.splitlines()) == ["err", "err", "out 1", "out 2"]
    assert shared.poise("logs", job).text == "out 1\nout 2\n"
    refused = shared.poise("run", "--json", "--output", "all", "--workers", "2", "--", "true")
    assert (refused.error["field"], refused.error["hint"]) == ("--output", "--output all.%r")

"""Code, environment and results follow the job, to a node that shares no file with the submitter and back."""

import contextlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from poise.client import Client
from poise.config import Address, Home
from poise.drivers.lock import holder
from poise.errors import NotFound, SpecError
from poise.model.reports.streams import LogPiece
from poise.model.trees import Entry, Manifest, digest
from system.living import PATIENCE, Done, Living, free_port, kill, until


class Far:
    """A home that listens, and the node `far`: an agent with a HOME, a state directory and a current folder of its own,
    on a machine that otherwise offers nothing.
    """

    def __init__(self) -> None:
        self.living = Living()
        self.living.up("--listen", f"127.0.0.1:{free_port()}", "--no-agent")
        self.address = Address.parse(self.living.poise("status").text.partition("address ")[2].split()[0])
        self.user = self.living.root / "another-user"
        self.home = Home(self.user / ".poise-node")
        self.user.mkdir()
        self._token = self.user / "token"
        self._token.touch(mode=0o600)
        self._token.write_bytes(self.living.poise("token", "add", "--tenant", "default", "--role", "node").out)
        self._agent: subprocess.Popen[bytes] | None = None
        self.tree = self.living.work / "project"
        self.tree.mkdir()

    def offer(self) -> None:
        """Start the agent, again where it was killed, and wait until its node is up."""
        agent = [sys.executable, "-m", "poise.agent", str(self.home.root), "--name", "far"]
        environment = self.living.environment(POISE_TOKEN_FILE=str(self._token), HOME=str(self.user))
        del environment["POISE_HOME"]
        with (self.living.root / "far.log").open("ab") as messages:
            self._agent = subprocess.Popen(
                [*agent, "--connect", self.address.text], stderr=messages, env=environment, cwd=self.user
            )
        until(lambda: [node.status for node in self.living.client().nodes()] == ["up"], "far is up", self.messages)

    def kill_agent(self) -> None:
        kill(holder(self.home.node / "lock"))
        if self._agent is not None:
            self._agent.wait(PATIENCE)

    def messages(self) -> str:
        log = self.living.root / "far.log"
        return (log.read_text() if log.exists() else "") + self.living.messages()

    def file(self, name: str, text: str) -> None:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def poise(self, *arguments: str, **more: str) -> Done:
        """A command typed in the working tree."""
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "poise"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.tree,
            env=self.living.environment(**more),
        )
        out, err = process.communicate(timeout=PATIENCE)
        return Done(process.returncode, out, err.decode("utf-8", "replace"))

    def output(self, job: str) -> str:
        """What a job wrote to its standard output."""
        lines = self.living.client().logs(job)
        return b"".join(line.data for line in lines if isinstance(line, LogPiece) and line.stream == "out").decode()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.living.poise("cancel", "--all")
        if self._agent is not None:
            self._agent.terminate()
            self._agent.wait(PATIENCE)
        self.living.close()


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    made = Far()
    try:
        made.offer()
        yield made
    except BaseException:
        made.living.destroy()
        raise
    made.close()


def test_a_working_tree_runs_where_nothing_is_shared(far: Far) -> None:
    far.file("main.py", "import pathlib, sys; sys.path.insert(0, '..'); from lib import name; print(name.WHO)\n")
    far.file(
        "sub/main.py", "import os, sys; sys.path.insert(0, '..'); from lib.name import WHO; print(WHO, os.getcwd())\n"
    )
    far.file("lib/name.py", "WHO = 'one'\n")
    far.file(".gitignore", "*.log\n")
    far.file("noise.log", "left out\n")
    (far.tree / ".git").mkdir(exist_ok=True)
    done = far.poise("run", "--sync", "--", sys.executable, "-c", "import os; print(sorted(os.listdir('.')))")
    assert (done.code, done.text) == (0, "['.gitignore', 'lib', 'main.py', 'sub']\n"), done
    assert f"poise: the command runs in a copy of {far.tree} (4 files, " in done.err, done.err
    assert "noise.log (`*.log` in .gitignore)" in done.err and ".git/ (version control)" in done.err
    far.file("lib/name.py", "WHO = 'two'\n")
    job = far.living.client().submit({"run": [sys.executable, "main.py"], "folder": str(far.tree / "sub")})
    assert far.living.client().wait(job, PATIENCE).exit_code == 0, far.messages()
    assert far.output(job) == f"two {far.home.work / job / 'main.1' / 'sub'}\n"
    far.file("sub/job.sh", "#!/bin/sh\n#POISE sync=true\ncat ../lib/name.py\n")
    done = far.poise("run", "sub/job.sh", "--sync")  # what follows the script is the script's
    assert (done.code, done.text) == (1, ""), "the script runs in the folder where it was typed"
    done = far.poise("run", "--", "sh", "-c", "cd sub && sh job.sh")
    assert done.text == "WHO = 'two'\n", "a Git working tree goes along by default"
    assert done.err.count("in a copy") == 1 and "nodes that have joined run the command in a copy" in done.err, done.err
    far.file(".env", "TOKEN=1\n")
    refused = far.poise("submit", "--sync", "--json", "--", "true")
    assert (refused.error["code"], refused.error["have"]) == ("E141", ".env")
    noted = far.poise("submit", "--hold", "--", "true")
    assert noted.code == 0 and "does not go along" in noted.err and "`!.env`" in noted.err, noted
    far.poise("cancel", noted.text.strip())
    (far.tree / ".env").unlink()
    (far.tree / "lib" / "name.py").unlink()


def test_a_kill_of_agent_and_control_plane_in_between_loses_nothing(far: Far) -> None:
    waiting = "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
    result = "pathlib.Path('out').mkdir()\npathlib.Path('out/result.txt').write_text('42')\nprint('ended')\n"
    far.file("slow.py", waiting + result)
    job = far.poise("submit", "--sync", "-q", "--", sys.executable, "slow.py").text.strip()
    copy = far.home.work / job / "main.1"
    until(lambda: (copy / "slow.py").exists(), "the tree is there", far.messages)
    control = far.living.pid("control")
    kill(control)
    far.kill_agent()
    until(lambda: far.living.pid("control") not in (0, control), "another control plane", far.messages)
    far.offer()
    (copy / "go").touch()
    done = far.living.client().wait(job, PATIENCE)
    assert done.exit_code == 0 and [task.epoch for task in done.tasks] == [1], (done, far.messages())
    # what was sent before the kill is not sent again
    again = far.poise("submit", "--sync", "--hold", "--", "true")
    assert ", none new; " in again.err
    far.poise("cancel", again.text.strip())

    # its results come back, by name and whole
    got = far.poise("get", f"{job}:out/result.txt", "--json")
    assert got.value == {"path": str(far.tree / "result.txt"), "files": 1, "bytes": 2}, got
    assert (far.tree / "result.txt").read_text() == "42"
    assert far.poise("get", f"{job}:out/result.txt", "--json").error["code"] == "E121", "it is there already"
    assert far.poise("get", f"{job}:out", "results").code == 0
    assert (far.tree / "results" / "result.txt").read_text() == "42"
    for path in ("../../../../etc/passwd", "/etc/passwd", "nothing"):
        assert far.poise("get", f"{job}:{path}", "x", "--json").error["code"] == "E120"
    (copy / "leak").symlink_to("/etc")
    assert far.poise("get", f"{job}:leak/passwd", "x", "--json").error["code"] == "E120"
    too_much = far.poise("get", f"{job}:out/result.txt", "y", "--most", "1MiB", "--force", "--json")
    assert too_much.code == 0
    assert not [path for path in far.tree.iterdir() if path.name.startswith(".poise-get")]
    for name in ("result.txt", "y"):
        (far.tree / name).unlink()
    shutil.rmtree(far.tree / "results")
    assert far.poise("rm", job).code == 0
    until(lambda: not copy.exists(), "its copy is gone with the job", far.messages)


def test_files_arrive_though_the_control_plane_is_killed_while_they_are_fetched(far: Far) -> None:
    """The command of the attempt waits for a control plane; each piece is checked on both ends."""
    (far.tree / "data.bin").write_bytes(os.urandom(24 << 20))
    client = far.living.client()
    job = far.poise("submit", "--sync", "--hold", "-q", "--", "sha256sum", "data.bin").text.strip()
    far.kill_agent()
    client.release(job)
    control = far.living.pid("control")
    far.offer()
    kill(control)
    done = client.wait(job, PATIENCE)
    assert done.exit_code == 0, (done, far.messages())
    wanted = subprocess.run(["sha256sum", far.tree / "data.bin"], capture_output=True, text=True, check=True).stdout
    assert far.output(job).split()[0] == wanted.split()[0]
    (far.tree / "data.bin").unlink()


def test_an_environment_is_built_once_and_its_failure_is_the_reason_of_the_job(far: Far) -> None:
    wheel = far.tree / "wheels" / "greeting-1.0-py3-none-any.whl"
    wheel.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("greeting.py", "WORD = 'hello'\n")
        packed.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        packed.writestr(
            "greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr("greeting-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in packed.namelist()))
    far.file("requirements.txt", "./wheels/greeting-1.0-py3-none-any.whl\n")
    asked = ("run", "--requirements", "requirements.txt", "--", "python", "-c", "import greeting; print(greeting.WORD)")
    first, second = far.poise(*asked), far.poise(*asked)
    assert (first.code, first.text, second.code, second.text) == (0, "hello\n", 0, "hello\n"), (first, second)
    assert "building a Python environment" in first.err and "building" not in second.err
    far.file("broken.txt", "./wheels/missing.whl\n")
    broken = far.poise("submit", "--requirements", "broken.txt", "-q", "--", "python", "-V").text.strip()
    done = far.living.client().wait(broken, PATIENCE)
    (task,) = done.tasks
    assert (
        (task.outcome, done.status) == ("unstartable", "failed") and "E217" in task.note and "missing.whl" in task.note
    )
    assert [node.status for node in far.living.client().nodes()] == ["up"]
    missing = far.poise("submit", "--requirements", "nowhere.txt", "--json", "--", "python", "-V")
    assert missing.error["field"] == "--requirements"


def test_what_a_hostile_client_sends_is_refused_and_another_tenant_sees_nothing(far: Far) -> None:
    client = far.living.client()
    secret = b"a secret file"
    ask = client._link.ask_raw
    manifest = Manifest((Entry("../../escape", "file", len(secret), digest(secret)),)).encode()
    ask("POST", "/v1/files", msgspec.msgpack.encode([manifest, secret]))
    with pytest.raises(SpecError, match="leads out"):
        ask("POST", f"/v1/trees/{digest(manifest).hex()}", digest(manifest))
    good = Manifest((Entry("f", "file", len(secret), digest(secret)),)).encode()
    ask("POST", "/v1/files", msgspec.msgpack.encode([good]))
    with pytest.raises(SpecError, match="another hash"):
        ask("POST", f"/v1/trees/{'0' * 64}", digest(good))
    with pytest.raises(SpecError, match="too large"):
        ask("POST", "/v1/files", msgspec.msgpack.encode([bytes(2 << 20)]))
    assert ask("POST", f"/v1/trees/{digest(good).hex()}", digest(good)) == b""
    other = far.living.poise("token", "add", "--tenant", "eve", "--role", "submitter").text.strip()
    eve = Client(far.living.home, token=other)
    assert eve._link.ask_raw("POST", "/v1/files/missing", digest(secret)) == digest(secret)
    with pytest.raises(NotFound):
        eve._link.ask_raw("GET", f"/v1/trees/{digest(good).hex()}")
    with pytest.raises(NotFound):
        eve.submit({"run": ["cat", "f"], "sync": {"tree": digest(good).hex()}})
    with pytest.raises(SpecError, match="not sent"):
        eve._submit({"run": ["true"], "sync": True})


def test_the_process_that_keeps_files_may_be_killed(far: Far) -> None:
    far.file("fresh.txt", "not sent before\n")
    (keeper,) = far.living.processes(b"poise.drivers.blobs")
    kill(keeper)
    done = far.poise("run", "--sync", "--", "cat", "fresh.txt")
    assert (done.code, done.text) == (0, "not sent before\n"), (done, far.messages())
    assert far.living.pid("control") not in (0, keeper) and keeper not in far.living.processes(b"poise.drivers.blobs")

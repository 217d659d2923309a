"""Two users of one machine, as real users: each command runs as its owner, and a hostile tenant gains nothing."""

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from poise.drivers.accounts import door_of, root_of
from system.living import POISE, Done, Living, ended, until
from system.podman import DEBIAN, LIBRARIES_OF, TRUST, Podman

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root: becomes two other users of this machine"
)

ANN, BOB = 54321, 54322
IN_ITS_OWN_VIEW = """
mount --bind "$1" /etc/passwd && mount --bind "$2" /etc/group || exit 1
mkdir "$3/up" "$3/wk" && mount -t overlay overlay -o "lowerdir=/root,upperdir=$3/up,workdir=$3/wk" /root &&
  chmod 711 /root
eval "$4"
shift 4
exec "$@"
"""
"""The accounts exist, and may enter /root where Python can be, for the processes of this home only: the files of the
machine stay as they are.
"""


class Users(NamedTuple):
    """A home that root has started, a folder that other users can enter, and the tokens of `ann` and `bob`."""

    living: Living
    place: Path
    tokens: dict[str, str]
    podman: Podman | None

    def of(self, who: str, *arguments: str | Path) -> Done:
        return self.living.poise(*arguments, POISE_TOKEN=self.tokens[who])

    def as_user(self, who: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a command as a user of the machine, whose client uses the door for accounts, with the user's token."""
        account = {"ann": ANN, "bob": BOB}[who]
        enter = ["nsenter", f"--mount=/proc/{self.living.pid('agent')}/ns/mnt", f"--wd={self.place / who}"]
        become = ["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups"]
        folder = self.place / who
        env = self.living.environment(
            HOME=str(folder),
            POISE_HOME=str(folder / "state"),
            POISE_SOCKET=str(door_of(self.living.home)),
            POISE_TOKEN=self.tokens[who],
        )
        pipe = subprocess.PIPE
        return subprocess.Popen([*enter, *become, *command], env=env, stdin=pipe, stdout=pipe, stderr=pipe)

    def brought(self, who: str, *run: str) -> str:
        """Submit a job with the files of a folder, and with an environment."""
        tree = self.living.work / f"of-{who}"
        tree.mkdir(exist_ok=True)
        (tree / "data").write_text(f"data of {who}")
        (tree / "requirements.txt").write_text("# nothing\n")
        fields = {"folder": str(tree), "sync": True, "requirements": "requirements.txt"}
        return self.submit(who, f"brought-by-{who}", *run, **fields)

    def got(self, who: str, source: str) -> str:
        """The content of a file that a job has left, or the error."""
        place = self.living.work / "got"
        place.unlink(missing_ok=True)
        done = self.of(who, "get", source, place)
        return place.read_text() if done.code == 0 else done.err

    def state(self, who: str) -> Path:
        """The state directory of an account."""
        return root_of(self.living.home) / who / "home"

    def submit(self, who: str, name: str, *run: str, **fields: Any) -> str:
        document = {"name": name, "folder": str(self.place / who), "run": run} | fields
        file = self.living.file(f"{name}.yaml", json.dumps(document))
        done = self.of(who, "submit", file, "--json")
        assert done.code == 0, done.text
        job: str = done.value["job"]
        return job


def up(living: Living, place: Path) -> None:
    accounts, groups = place / "passwd", place / "group"
    lines = [f"{name}:x:{uid}:{uid}::{place / name}:/bin/sh\n" for name, uid in (("ann", ANN), ("bob", BOB))]
    accounts.write_text(Path("/etc/passwd").read_text() + "".join(lines))
    groups.write_text(Path("/etc/group").read_text() + f"ann:x:{ANN}:\nbob:x:{BOB}:\n")
    own = ["unshare", "--mount", "sh", "-c", IN_ITS_OWN_VIEW, "sh", str(accounts), str(groups), str(place)]
    own.append(LIBRARIES_OF if DEBIAN.exists() else ":")
    command = [*own, POISE, "up", "--port", "0"]
    pipe = subprocess.PIPE
    done = ended(subprocess.Popen(command, env=living.environment(), cwd=living.work, stdout=pipe, stderr=pipe))
    assert done.code == 0, done.err


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    living, place = Living(), Path(tempfile.mkdtemp(prefix="poise-users-", dir="/srv"))
    folders = root_of(living.home)
    try:
        place.chmod(0o755)
        for name, uid in (("ann", ANN), ("bob", BOB)):
            (place / name / ".config" / "poise").mkdir(parents=True)
            (place / name / ".config" / "containers").mkdir()
            (place / name / ".config" / "containers" / "policy.json").write_text(TRUST)
            (place / name / ".config" / "poise" / "token").write_text("secret of " + name)
            for path in [place / name, *(place / name).rglob("*")]:
                os.chown(path, uid, uid)
                path.chmod(0o700 if path.is_dir() else 0o600)
        shutil.copy(Path(__file__).with_name("hostile.py"), place / "hostile.py")
        podman = _podman(place / "podman")
        if podman is not None:
            living.variables["PATH"] = f"{podman.bin}:{os.environ['PATH']}"
        up(living, place)
        tokens = {}
        for name in ("ann", "bob"):
            added = living.poise(
                "token", "add", "--tenant", "team", "--role", "submitter", "--name", name, "--account", name, "--json"
            )
            tokens[name] = added.value["secret"]
        yield Users(living, place, tokens, podman)
        living.close()
    finally:
        living.destroy()
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(folders, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in use
            folders.parent.rmdir()


def _podman(place: Path) -> Podman | None:
    place.mkdir(mode=0o755)
    try:
        return Podman(place)
    except pytest.skip.Exception:
        return None


@pytest.fixture
def device() -> Iterator[str]:
    """A device node that looks like one of an accelerator, and that everybody may open."""
    path = Path("/dev/nvidia97")
    path.unlink(missing_ok=True)
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    path.chmod(0o666)
    yield str(path)
    path.unlink()


def test_a_hostile_tenant_gains_nothing_as_root_starts_both(users: Users, device: str) -> None:
    living, place = users.living, users.place
    secret = place / "secret.json"
    secret.write_text('"of root"')
    secret.chmod(0o600)
    setuid = place / "setuid-id"
    shutil.copy("/usr/bin/id", setuid)
    setuid.chmod(0o4755)
    script = str(place / "hostile.py")
    if _runs_python(users):
        files = users.brought("bob", "true")
        assert users.of("bob", "wait", files).code == 0, users.of("bob", "logs", files).text
    victim = users.submit("bob", "victim", "/usr/bin/python3", script, "victim", env={"SECRET": "hunter2"})
    told = json.loads(until(lambda: users.of("bob", "logs", victim).text, "the victim runs").splitlines()[0])
    keepers = living.home.node / "keepers"
    told |= {
        "sockets": ":".join(str(path) for path in (*keepers.glob("*.sock"), living.home.socket)),
        "tokens": ":".join(map(str, (living.home.token, place / "bob/.config/poise/token", secret, "/etc/shadow"))),
        "logs": str(living.home.logs),
        "secret": str(secret),
        "device": device,
        "door": str(door_of(living.home)),
        "attempt": f"{victim}.main#1",
        "state": str(users.state("bob")),
        "setuid": str(setuid),
        "uid": str(ANN),
    }
    told = {name: str(value) for name, value in told.items()}
    hostile = users.submit("ann", "hostile", "/usr/bin/python3", script, json.dumps(told))
    assert users.of("ann", "wait", hostile).code == 0, users.of("ann", "logs", hostile).text
    found = json.loads(users.of("ann", "logs", hostile).out.splitlines()[-1])
    assert len(found) > 20
    assert {name: evidence for name, evidence in found.items() if evidence} == {}
    results = users.of("ann", "results", hostile, "--json").text
    assert "of root" not in results
    assert "of root" not in living.messages()

    (place / "bob" / "end").touch()
    assert users.of("bob", "wait", victim).code == 0, "it could start processes all the time"
    assert users.of("bob", "logs", victim).text.splitlines()[-1] == "saved"


def test_files_of_a_command_belong_to_its_account_and_follow_no_link(users: Users) -> None:
    place, ann = users.place, users.place / "ann"
    theirs = place / "bob" / "notes"
    theirs.write_text("bob's")
    os.chown(theirs, BOB, BOB)
    theirs.chmod(0o600)
    (ann / "link").symlink_to(theirs)
    show = "id -un; id -u; pwd; umask; echo $HOME $USER; touch /tmp/mine; echo '{\"a\": 1}' > $POISE_RESULT"
    linked = users.submit("ann", "linked", "sh", "-c", show, output="link")
    assert users.of("ann", "wait", linked).code == 0
    assert users.of("ann", "logs", linked).text.splitlines() == [
        "ann", str(ANN), str(ann), "0077", f"{ann} ann",
    ]  # fmt: skip
    assert theirs.read_text() == "bob's"
    assert "Permission denied" in users.of("ann", "show", linked).err
    hidden = users.submit("ann", "hidden", "true", folder=str(users.living.work))
    assert users.of("ann", "wait", hidden).code != 0
    assert "does not exist: /tmp is private here" in str(users.of("ann", "show", hidden))
    own = users.submit("ann", "own", "sh", "-c", "echo written; ls /tmp", output="own.txt")
    assert users.of("ann", "wait", own).code == 0
    assert (ann / "own.txt").read_text() == "written\nmine\n", "its private /tmp is that of the account"
    assert (ann / "own.txt").stat().st_uid == ANN
    log = next(users.living.home.logs.glob(f"{own}/*.out"))
    assert (log.stat().st_uid, stat.S_IMODE(log.stat().st_mode)) == (ANN, 0o600)
    assert stat.S_IMODE(users.living.home.root.stat().st_mode) == 0o700


def test_a_gang_of_an_account_meets_in_its_own_folder(users: Users) -> None:
    meet = 'cd "$POISE_GANG_DIR"; touch "$POISE_RANK"; until [ -e 0 ] && [ -e 1 ]; do sleep 0.05; done; stat -c %u:%a .'
    job = users.submit("bob", "gang", "sh", "-c", meet, workers=2, resources={"cpu": 0.5})
    assert users.of("bob", "wait", job).code == 0, users.of("bob", "logs", job).text
    assert f"{BOB}:700" in users.of("bob", "logs", job).text


def test_a_command_beside_a_task_and_its_terminal_belong_to_the_account(users: Users) -> None:
    job = users.submit("ann", "open", "sleep", "60")
    until(lambda: users.of("ann", "exec", job, "--", "true").code == 0, "the task runs")
    assert users.of("ann", "exec", job, "--", "id", "-u").text == f"{ANN}\n"
    assert users.of("ann", "exec", job, "--", "cat", "/etc/shadow").code == 1
    refused = users.of("bob", "exec", job, "--", "id", "-u")
    assert refused.code != 0
    assert "runs as another user" in refused.err
    assert users.of("ann", "cancel", job).code == 0
    assert users.of("ann", "wait", job).code != 0


def test_files_environments_and_what_is_left_belong_to_the_account(users: Users) -> None:
    if not _runs_python(users):
        pytest.skip("the accounts cannot run this Python")
    show = "id -un; stat -c %U:%a . data; cat data; echo; python -c 'import sys; print(sys.prefix)'; echo made > made"
    seen = {}
    for who in ("ann", "bob"):
        job = users.brought(who, "sh", "-c", show)
        assert users.of(who, "wait", job).code == 0, users.of(who, "show", job).text + users.of(who, "logs", job).text
        *lines, prefix = users.of(who, "logs", job).out.decode().splitlines()
        assert lines == [who, f"{who}:700", f"{who}:600", f"data of {who}"]
        assert prefix.startswith(f"{users.state(who)}/environments/")
        seen[who] = prefix
        assert users.got(who, f"{job}:made") == "made\n"
        other = {"ann": "bob", "bob": "ann"}[who]
        assert "runs as another user" in users.got(other, f"{job}:made")
    assert seen["ann"] != seen["bob"], "no environment is shared"
    led = users.submit("ann", "led", "sh", "-c", f"ln -s {users.place}/bob/.config theirs; echo 1 > mine")
    assert users.of("ann", "wait", led).code == 0
    assert users.got("ann", f"{led}:mine") == "1\n"
    assert "no such file" in users.got("ann", f"{led}:theirs/poise/token")
    shadow = users.submit("ann", "shadow", "true", folder="/etc")
    assert users.of("ann", "wait", shadow).code == 0
    assert "Permission denied" in users.got("ann", f"{shadow}:shadow")


CALLS = """
import json, os, poise

@poise.task
def who(data: bytes) -> list:
    return [os.getuid(), len(data), os.environ.get("HOME"), b"x" * 3_000_000]

uid, size, home, large = who(b"y" * 3_000_000)
print(json.dumps([uid, size, home, len(large)]))
"""


def test_functions_and_services_run_as_the_account_of_their_caller(users: Users) -> None:
    if not _runs_python(users):
        pytest.skip("the accounts cannot run this Python")
    ann = users.place / "ann"
    (ann / "calls.py").write_text(CALLS)
    (ann / "calls.py").chmod(0o644)
    done = ended(users.as_user("ann", sys.executable, ann / "calls.py"))
    assert done.code == 0, done.err
    assert done.value == [ANN, 3_000_000, str(ann), 3_000_000]

    model = "import os\nclass Model:\n    def predict(self, batch):\n        return [os.getuid()] * len(batch)\n"
    (ann / "model.py").write_text(model)
    (ann / "model.py").chmod(0o644)
    other = ended(users.living.start("serve", ann / "model.py:Model", "--port", "0", POISE_TOKEN=users.tokens["ann"]))
    assert other.code != 0
    assert "run `poise serve` as ann" in other.err
    gateway = users.as_user("ann", POISE, "serve", "model.py:Model", "--port", "0")
    try:
        assert gateway.stderr is not None
        line = next(line for line in iter(gateway.stderr.readline, b"") if b"http://" in line).decode()
        address = re.search(r"http://127.0.0.1:\d+", line)
        assert address is not None, line
        answer = until(lambda: _asked(f"{address[0]}/predict") or gateway.poll(), "the service answers")
        assert gateway.poll() is None, gateway.stderr.read()
        assert json.loads(answer) == ANN
    finally:
        gateway.terminate()
        ended(gateway)


def test_a_container_runs_as_the_account_from_its_own_images(users: Users, device: str) -> None:
    if users.podman is None or not _runs(users, "test", "-e", DEBIAN):
        pytest.skip("podman does not run here, or not for the accounts")
    ann = users.place / "ann"
    shutil.copy(users.podman.image, ann / "image.tar")
    (ann / "image.tar").chmod(0o644)
    name = "localhost/of-ann:1"
    made = users.submit("ann", "made", users.podman.command, "import", "--quiet", "image.tar", name)
    assert users.of("ann", "wait", made).code == 0, users.of("ann", "logs", made)
    show = "id -u; cat /of-the-image; echo inside > made-inside; cat /etc/shadow; echo '{\"a\": 1}' > $POISE_RESULT"
    job = users.submit("ann", "contained", "sh", "-c", show, image=name)
    assert users.of("ann", "wait", job).code == 0, users.of("ann", "logs", job)
    assert users.of("ann", "logs", job).out.decode().splitlines()[:2] == ["0", "inside"]
    assert (ann / "made-inside").stat().st_uid == ANN
    assert users.of("ann", "results", job, "--json").value[0]["result"] == {"a": 1}
    limit: dict[str, Any] = {"time-limit": "5s"}
    within = users.submit("ann", "devices", "cat", Path(device).name, image=name, folder="/dev", **limit)
    users.of("ann", "wait", within)
    assert users.of("ann", "logs", within).out == b"", "a device of another attempt gives no zeros"
    theirs = users.submit("bob", "theirs", "true", image=name)
    assert users.of("bob", "wait", theirs).code == 125, "the images of ann are not those of bob"
    until(lambda: not _left(), "nothing of it goes on", _left)


def _asked(url: str) -> bytes:
    asked = urllib.request.Request(url, b"1", {"Content-Type": "application/json"})  # noqa: S310 — on this machine
    with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310
        return bytes(answer.read())
    return b""


def _runs(users: Users, *command: str | Path) -> bool:
    """Whether work of the accounts can run this: it may be in a folder that is closed to them, such as /tmp."""
    return users.of("ann", "wait", users.submit("ann", "tried", *map(str, command))).code == 0


def _runs_python(users: Users) -> bool:
    return _runs(users, sys.executable, "-c", "import poise")


def test_work_of_an_account_survives_the_agent_and_ends_with_its_keeper(users: Users) -> None:
    living = users.living
    job = users.submit("ann", "long", "sh", "-c", "setsid sleep 300 & sleep 300", retry={"limit": 0})
    until(lambda: users.of("ann", "show", job, "--json").value["status"] == "running", "it runs")
    agent = living.pid("agent")
    os.kill(agent, 9)
    until(lambda: living.pid("agent") not in (0, agent), "another agent has come")
    until(lambda: users.of("ann", "exec", job, "--", "id", "-u").text == f"{ANN}\n", "the agent has taken it over")
    keeper = int(users.of("ann", "exec", job, "--", "sh", "-c", "echo $PPID").text)
    os.kill(keeper, 9)
    assert users.of("ann", "wait", job).code != 0
    until(lambda: not _left(), "nothing of it goes on", _left, seconds=20)


def _left() -> list[str]:
    """The commands of processes of ann."""
    found = [one for one in Path("/proc").iterdir() if one.name.isdigit() and _of(one) == ANN]
    return [(one / "stat").read_text() for one in found if one.exists()]


def _of(process: Path) -> int:
    with contextlib.suppress(OSError):
        return process.stat().st_uid
    return -1


def test_what_is_not_there_is_said_before_anything_is_spent(users: Users) -> None:
    living = users.living
    added = living.poise("token", "add", "--tenant", "x", "--role", "submitter", "--account", "carol", "--json")
    refused = living.poise("submit", "--json", "--", "true", POISE_TOKEN=added.value["secret"])
    assert refused.error["message"].endswith("no node runs commands as the account `carol`")
    assert living.poise("whoami", POISE_TOKEN=users.tokens["ann"]).text.endswith("commands run as ann\n")
    checks = {of["name"]: of for of in living.poise("doctor", "--json").value["checks"]}
    assert checks["users"]["status"] == "ok"

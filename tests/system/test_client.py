"""The light client: its wheel, unpacked alone, on a machine without what macOS and Windows do not have."""

import contextlib
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator

import pytest
from unit.test_release import CLONE, script

from system.living import Living, free_port

ELSEWHERE = """
import os, signal, socket, sys, time

NOT_THERE = {
    os: ("O_CLOEXEC", "O_PATH", "uname", "getuid", "geteuid", "sched_getaffinity", "pread", "pwrite", "fork", "mkfifo"),
    signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "pthread_sigmask"),
    socket: ("AF_UNIX", "SO_PEERCRED", "TCP_USER_TIMEOUT"),
    time: ("CLOCK_BOOTTIME",),
}
for module, names in NOT_THERE.items():
    for name in names:
        vars(module).pop(name, None)

MISSING = "fcntl grp pwd resource termios tty pty numpy uvloop uvicorn aiohttp psutil cryptography httptools".split()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
for name in MISSING:
    sys.modules.pop(name, None)
"""
"""Takes away what only Linux, or only POSIX, has, and what the client does not install."""

SDK = """
import poise
with poise.Client() as client:
    print(client.wait(client.submit({"run": ["echo", "from Python"], "folder": "/"})).status)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs Python code, with arguments, where only the client is, beside a control plane that listens."""
    folder, build, living = tmp_path_factory.mktemp("client"), script("build"), Living()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "DIST", folder / "dist")
        patch.setattr(build, "STAGE", folder / "stage")
        build.main()
    [wheel] = (folder / "dist").glob("poise_client-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "installed")
    path = f"{folder / 'installed'}:{sysconfig.get_path('purelib')}"
    try:
        living.up("--listen", f"127.0.0.1:{free_port()}")
        address = next(line.split()[1] for line in living.poise("status").text.splitlines() if line[:7] == "address")
        token = living.poise("token", "add", "--tenant", "default", "--role", "submitter").text.strip()
        elsewhere = {"POISE_ADDRESS": address, "POISE_TOKEN": token}

        def run(code: str, *arguments: str, alone: bool = False) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-S", "-c", ELSEWHERE + code, *arguments],  # without the files that add this clone
                env={"PYTHONPATH": path, "HOME": str(folder)} | ({} if alone else elsewhere),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=60,
            )

        yield run
    except BaseException:
        living.destroy()
        raise
    with contextlib.suppress(AssertionError):
        living.poise("down", "--cancel")
    living.close()


COMMAND = "from poise.cli.main import main; sys.exit(main())"


@CLONE
def test_the_client_submits_lists_shows_and_reads_logs(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = python(COMMAND, "submit", "--name", "far", "-q", "--", "echo", "hello from afar")
    assert done.returncode == 0 and done.stdout.strip() == "j1", done
    assert python(COMMAND, "wait", "far").returncode == 0
    assert python(COMMAND, "logs", "far").stdout == "hello from afar\n"
    assert "far" in python(COMMAND, "ls").stdout
    assert python(COMMAND, "show", "far").stdout.startswith("j1 far  done")
    assert python(COMMAND, "whoami").stdout.startswith("submitter of default")
    assert python("open('wrong.yaml', 'w').write('run: [echo]\\ncpus: 2\\n')").returncode == 0
    refused = python(COMMAND, "submit", "wrong.yaml")
    assert refused.returncode == 1 and "cpus (wrong.yaml:2:1)" in refused.stderr, refused


@CLONE
def test_the_client_of_python_programs(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python(SDK)
    assert (done.returncode, done.stdout) == (0, "done\n"), done


@CLONE
@pytest.mark.parametrize("command", [("up",), ("ls",), ("submit", "--", "true"), ("simulate", "x")])
def test_what_needs_all_of_poise_says_so(
    python: Callable[..., subprocess.CompletedProcess[str]], command: tuple[str, ...]
) -> None:
    done = python(COMMAND, *command, alone=True)
    assert done.returncode == 1 and "only the client is installed" in done.stderr, done
    assert "pip install poise-scheduler" in done.stderr

"""A tenant who tries everything against a neighbour on the same machine. Prints one JSON object: each attack by its
name, with the evidence if it succeeded, else an empty text. It runs by itself, with the standard library only.
"""

# ruff: noqa: T201

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ATTACH, DETACH = 16, 17
FORKS = 200
"""Processes to try with a limit of half as many: the real limit would take seconds to reach."""

ATTACKS: dict[str, Callable[[dict[str, str]], object]] = {}


def attack(does: Callable[[dict[str, str]], object]) -> Callable[[dict[str, str]], object]:
    ATTACKS[does.__name__.replace("_", " ")] = does
    return does


@attack
def signal_a_process(told: dict[str, str]) -> object:
    os.kill(int(told["pid"]), signal.SIGCONT)
    return "a signal was delivered"


@attack
def signal_the_keeper(told: dict[str, str]) -> object:
    os.kill(int(told["keeper"]), signal.SIGCONT)
    return "a signal was delivered"


@attack
def trace_a_process(told: dict[str, str]) -> object:
    trace = ctypes.CDLL(None).ptrace
    if trace(ATTACH, int(told["pid"]), None, None) != 0:
        return ""
    os.waitpid(int(told["pid"]), 0x40000000)
    trace(DETACH, int(told["pid"]), None, None)
    return "it was attached"


@attack
def see_a_process(told: dict[str, str]) -> object:
    return Path(f"/proc/{told['pid']}").exists() and "it is in /proc"


@attack
def read_an_environment(told: dict[str, str]) -> object:
    return b"SECRET" in Path(f"/proc/{told['pid']}/environ").read_bytes() and "SECRET"


@attack
def read_memory(told: dict[str, str]) -> object:
    first = Path(f"/proc/{told['pid']}/maps").read_text().split("-")[0]
    with Path(f"/proc/{told['pid']}/mem").open("rb") as memory:
        memory.seek(int(first, 16))
        return memory.read(4)


@attack
def take_an_open_file(told: dict[str, str]) -> object:
    return [str(path.readlink()) for path in Path(f"/proc/{told['pid']}/fd").iterdir()]


@attack
def see_a_file_in_tmp(told: dict[str, str]) -> object:
    return [name for place in ("/tmp", "/var/tmp") for name in os.listdir(place) if name == "of-bob"]  # noqa: S108, PTH208


@attack
def connect_to_a_socket_of_poise(told: dict[str, str]) -> object:
    known = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:] if line.count(" ") > 6]
    paths = {name for name in known if "poise" in name or "slot-" in name} | set(told["sockets"].split(":"))
    paths -= {told["door"]}  # whoever comes there must show a key: see below
    found = []
    for name in paths:
        for address in (name, "\0" + name[1:] if name.startswith("@") else name):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
                line.connect(address)
                found.append(name)
    return found


@attack
def read_the_api_without_a_token(told: dict[str, str]) -> object:
    return [path for path in ("/v1/jobs", "/v1/tokens", "/v1/nodes") if _ask(told["door"], path, "") != 401]


@attack
def get_files_with_the_key_of_another(told: dict[str, str]) -> object:
    own = f"{os.environ['POISE_TASK']}#{os.environ['POISE_EPOCH']}"
    keys = ("", "0" * 64, own)
    return [key for key in keys if _ask(told["door"], "/v1/attempts/files", key, told["attempt"]) != 401]


@attack
def reach_what_is_kept_for_another_account(told: dict[str, str]) -> object:
    found = []
    for name in ("", "environments", "work", "values", "fetched.db"):
        with contextlib.suppress(OSError):
            found += os.listdir(Path(told["state"], name))  # noqa: PTH208
        with contextlib.suppress(OSError), Path(told["state"], name).open("ab"):
            found.append(name)
        with contextlib.suppress(OSError):
            Path(told["state"], name, "of-ann").mkdir()
            found.append(name)
    return found


@attack
def take_the_place_of_the_control_plane(told: dict[str, str]) -> object:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        Path(told["door"]).unlink()
        line.bind(told["door"])
        return "it listens at the door"
    return ""


@attack
def read_a_token(told: dict[str, str]) -> object:
    return [path for path in told["tokens"].split(":") if _reads(path)]


@attack
def find_a_token_in_the_environment(told: dict[str, str]) -> object:
    return [name for name in os.environ if "TOKEN" in name or "KEY" in name or "SECRET" in name]


@attack
def inherit_an_open_file(told: dict[str, str]) -> object:
    return [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _is_open(int(fd))]  # noqa: PTH208


@attack
def leave_a_core_dump(told: dict[str, str]) -> object:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return resource.getrlimit(resource.RLIMIT_CORE)[1] != 0 and "its size is not limited to 0"


@attack
def fork_without_end(told: dict[str, str]) -> object:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if hard in (resource.RLIM_INFINITY, 0) or hard > 512 * max(2, os.cpu_count() or 2):
        return f"at most {hard} processes"
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))
        return "the limit was raised"
    resource.setrlimit(resource.RLIMIT_NPROC, (FORKS // 2, hard))
    children: list[int] = []
    with contextlib.suppress(BlockingIOError):
        while len(children) < FORKS:
            if (pid := os.fork()) == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    return len(children) >= FORKS and f"{len(children)} processes"


@attack
def use_a_device_of_another_attempt(told: dict[str, str]) -> object:
    return Path(told["device"]).open("rb").read(1)


@attack
def use_a_device_of_the_machine(told: dict[str, str]) -> object:
    return [name for name in ("/dev/mem", "/dev/kmsg", "/dev/loop0", "/dev/vda") if _opens(name)]


@attack
def make_a_device_node(told: dict[str, str]) -> object:
    os.mknod("node", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    return "it was made"


@attack
def put_a_link_among_the_logs(told: dict[str, str]) -> object:
    Path(told["logs"], "x").symlink_to("/etc/passwd")
    return "it was made"


@attack
def write_over_a_checkpoint(told: dict[str, str]) -> object:
    with Path(told["checkpoint"]).open("r+b") as file:
        file.write(b"stolen")
    return "it was written"


@attack
def look_into_the_folders_of_another_account(told: dict[str, str]) -> object:
    folder = Path(told["checkpoint"]).parent
    return os.listdir(folder)  # noqa: PTH208


@attack
def run_a_setuid_program(told: dict[str, str]) -> object:
    done = subprocess.run([told["setuid"], "-u"], capture_output=True, text=True, check=False)
    return done.stdout.strip() != told["uid"] and f"it ran as user {done.stdout.strip() or done.stderr}"


@attack
def become_root(told: dict[str, str]) -> object:
    os.setresuid(0, 0, 0)
    return "it is root"


def links(told: dict[str, str]) -> None:
    """Put links to a file of root where the agent reads a result and a report, hard ones if the kernel lets."""
    for name in ("POISE_RESULT", "POISE_REPORT"):
        for link in (os.link, os.symlink):
            with contextlib.suppress(OSError):
                link(told["secret"], os.environ[name])


def _ask(door: str, path: str, key: str, attempt: str = "") -> int:
    """Send a request to the control plane, and return the status of the answer."""
    lines = [f"{'POST' if attempt else 'GET'} {path} HTTP/1.1", "Host: poise", "Content-Length: 0"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"Poise-Attempt: {attempt}"] if attempt else []
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(door)
        line.sendall(("\r\n".join([*lines, "", ""])).encode())
        return int(line.recv(4096).split()[1])


def _reads(path: str) -> bool:
    try:
        return bool(Path(path).read_bytes())
    except OSError:
        return False


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _is_open(fd: int) -> bool:
    """Whether it was open before this process looked."""
    try:
        return not os.readlink(f"/proc/self/fd/{fd}").endswith("/fd")  # noqa: PTH115
    except OSError:
        return False


def victim() -> None:
    """The neighbour's work: it has something to lose, says where, and needs processes of its own until it is asked to
    end.
    """
    Path("/tmp/of-bob").write_text("his")  # noqa: S108 — as any program does
    checkpoint = Path(os.environ["POISE_CHECKPOINTS"]) / "step"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text("saved")
    print(json.dumps({"pid": os.getpid(), "keeper": os.getppid(), "checkpoint": str(checkpoint)}), flush=True)
    while not Path("end").exists():
        subprocess.run(["true"], check=True)
        time.sleep(0.02)
    print(checkpoint.read_text())


def main() -> None:
    if sys.argv[1] == "victim":
        victim()
        return
    told: dict[str, str] = json.loads(sys.argv[1])
    found = {}
    for name, does in ATTACKS.items():
        try:
            found[name] = str(does(told) or "")
        except (OSError, ValueError) as error:
            found[name] = ""
            print(f"{name}: {error}", file=sys.stderr)
    links(told)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

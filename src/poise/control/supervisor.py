"""Keeps a control plane and its agents alive on one machine. Standard library only; run as a file:

    python -S supervisor.py HOME [--no-agent] [--dashboard] [--until-idle] [options of the control plane …]

There is one agent, of this machine; or, where the home has a declared fleet (`fleet.json`), one for each of its nodes;
or, where it has a cluster (`NAME/cluster.json`), one process that keeps the agents of the cluster's machines; or none:
then this machine only decides, or stands by to.
What nodes of an earlier fleet left running is ended once, by an agent that retires them: their work has been given up.
A gateway (`poise serve`) of this home whose processes were all killed is started again, at the same address; one that
was told to end is not, and none ends with this process.

With `--traces URL` the exporter of traces runs beside them, with `--dashboard` the dashboard; while a policy is in
shadow (`shadow/asked.json`), the process of its simulated fleet.

A child that ends is started again, at once the first time and after a pause that doubles to five seconds when it keeps
ending. A control plane that ends with code 0 was told to, with code 3 cannot start until a person acts: then the agents
are ended too, and so is this process. Whoever holds the locks already (children of a supervisor that was killed) is
left alone, and replaced only when it is gone.
"""

# pathlib would be the dearest import here; json and socket are imported where they are needed, which is seldom:
# ruff: noqa: PTH103, PTH108, PTH110, PTH112, PTH118, PTH119, PTH122, PTH123, PTH208

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time

LONGEST_PAUSE = 5.0
STEADY = 10.0
LOOK_EVERY = 0.5
STOP_SECONDS = 5.0
CLUSTER_STOP_SECONDS = 60.0
TOLD_TO_END = 0
CANNOT_START = 3
NO_AGENT = "--no-agent"
DASHBOARD = "--dashboard"
LISTEN = "--listen"
TRACES = "--traces"
UNTIL_IDLE = "--until-idle"
BOOT = "/proc/sys/kernel/random/boot_id"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy starts a thread for each core when it is imported. The control plane multiplies no matrices: they idle."""


class Child:
    """One process to keep alive. `lock` is the file that it holds while it lives; `defaults` are variables that it gets
    where the environment does not set them.
    """

    def __init__(
        self,
        arguments: list[str],
        lock: str,
        stop_seconds: float = STOP_SECONDS,
        defaults: dict[str, str] | None = None,
    ) -> None:
        self.arguments = arguments
        self.defaults = defaults or {}
        self.lock = lock
        self.stop_seconds = stop_seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.pause = 0.0
        self.not_before = 0.0

    def start_if_due(self) -> None:
        now = time.monotonic()
        if self.process is None and now >= self.not_before and not held_by_other(self.lock):
            self.process = subprocess.Popen(  # noqa: S603 — our own program
                self.arguments, stdin=subprocess.DEVNULL, env=self.defaults | os.environ
            )
            self.started = now

    def ended(self) -> int | None:
        """The exit code if it has just ended; it is due again after a pause."""
        if self.process is None or self.process.poll() is None:
            return None
        code, self.process = self.process.returncode, None
        steady = time.monotonic() - self.started > STEADY
        self.pause = 0.0 if steady else min(LONGEST_PAUSE, self.pause * 2 or 0.1)
        self.not_before = time.monotonic() + (self.pause if self.pause > 0.1 else 0.0)
        return code

    def ask_to_stop(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def stop(self, asked: float) -> None:
        """Wait until it has ended, and end it by force when it has had its time since then (monotonic seconds)."""
        if self.process is not None:
            try:
                self.process.wait(max(0.0, asked + self.stop_seconds - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Gateway(Child):
    """A registered gateway. Its processes pass its lock on from one to the next. A restarted gateway inherits a lock
    acquired here, and the socket, so that no other process can take them in between. (`poise_serve.parent`)
    """

    def __init__(self, record: str) -> None:
        self.record, (place, _) = record, os.path.splitext(record)
        self.mark = os.path.basename(place)
        super().__init__([], f"{place}.lock")

    def start_if_due(self) -> None:
        now = time.monotonic()
        if self.process is not None or now < self.not_before:
            return
        try:
            lock = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # it has ended in order
            return
        import json
        import socket

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(self.record) as file, open(BOOT) as boot:
                told = json.load(file)
                if told["boot"] != boot.read():  # its machine was started again, and nobody has asked for it since
                    os.unlink(self.record)
                    os.unlink(self.lock)
                    return
            family = socket.AF_INET6 if ":" in told["host"] else socket.AF_INET
            with socket.create_server((told["host"], told["port"]), family=family, backlog=2048) as listening:
                given = (listening.fileno(), lock)
                known = {"POISE_GATEWAY_INHERITED": f"{given[0]} {lock} {self.mark}"}
                self.process = subprocess.Popen(  # noqa: S603 — as the user has started it
                    told["command"],
                    stdin=subprocess.DEVNULL,
                    pass_fds=given,
                    cwd=told["folder"],
                    env=os.environ | told["environment"] | known,
                    start_new_session=True,
                )
                self.started = now
                sys.stderr.write(f"the gateway {self.mark} was killed; process {self.process.pid} takes over\n")
        except BlockingIOError:  # it lives
            pass
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            self.pause = min(LONGEST_PAUSE, self.pause * 2 or LOOK_EVERY)
            self.not_before = now + self.pause
            sys.stderr.write(f"the gateway {self.mark} was killed, and cannot be started again: {error}\n")
        finally:
            os.close(lock)


def gateways(home: str, known: dict[str, Gateway]) -> dict[str, Gateway]:
    """Return, by record, the registered gateways, and those that were started here and have not ended."""
    folder = os.path.join(home, "services")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    there = [os.path.join(folder, name) for name in sorted(names) if name.endswith(".gateway")]
    running = {record: one for record, one in known.items() if one.process is not None}
    return running | {record: known.get(record) or Gateway(record) for record in there}


def held_by_other(path: str) -> bool:
    try:
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared lock, so that concurrent checks do not conflict
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def take(path: str) -> bool:
    """Hold the lock from now on. Looking at a lock shares it for an instant, so try for a moment."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(50):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        name = b"%d\n" % os.getpid()
        os.pwrite(lock, name, 0)
        os.ftruncate(lock, len(name))
        return True
    return False


def say_ending(lock: str) -> None:
    """Write into our lock that we are ending: who wants to start another waits for that. (`poise.drivers.lock`)"""
    with contextlib.suppress(OSError), open(lock, "ab") as file:
        file.write(b"ending\n")


def agents(home: str) -> tuple[list[Child], list[Child]]:
    """The agents to keep, of the declared fleet's nodes or of this machine; and those that retire other nodes."""
    program = [sys.executable, "-m", "poise.agent", home]
    declared = os.path.join(home, "fleet.json")
    node, nodes = (os.path.join(home, name) for name in ("node", "nodes"))
    for name in sorted(os.listdir(home)):
        if os.path.exists(os.path.join(home, name, "cluster.json")):
            keeper = [sys.executable, "-m", "poise.agent.on_substrate", home]
            on_cluster = Child(keeper, os.path.join(home, name, "lock"), CLUSTER_STOP_SECONDS)
            return [on_cluster], [retiring(program, folder) for folder in every_folder(node, nodes)]
    try:
        with open(declared) as file:
            import json

            names = [node["name"] for node in json.load(file)["nodes"]]
    except FileNotFoundError:
        kept = {node: Child(program, os.path.join(node, "lock"))}
    except (ValueError, KeyError, TypeError):
        return [], []  # it is damaged, and the control plane says so
    else:
        folders = {os.path.join(nodes, name): name for name in names}
        kept = {
            folder: Child([*program, "--declared", declared, "--name", name], os.path.join(folder, "lock"))
            for folder, name in folders.items()
        }
    left = [folder for folder in every_folder(node, nodes) if folder not in kept]
    return list(kept.values()), [retiring(program, folder) for folder in left]


def retiring(program: list[str], folder: str) -> Child:
    return Child([*program, "--retire", folder], os.path.join(folder, "lock"))


def dashboards(home: str, options: list[str]) -> list[Child]:
    """The dashboard, where one is kept; for other machines, too, where the control plane listens to them."""
    if DASHBOARD not in options:
        return []
    beyond = [LISTEN, options[options.index(LISTEN) + 1]] if LISTEN in options else []
    return [Child([sys.executable, "-m", "poise.dashboard", home, *beyond], os.path.join(home, "dashboard"))]


def exporters(home: str, options: list[str]) -> list[Child]:
    """The exporter of traces, where they are exported."""
    if TRACES not in options:
        return []
    url = options[options.index(TRACES) + 1]
    program = [sys.executable, "-m", "poise.control.traces", home, "--to", url]
    return [Child(program, os.path.join(home, "traces", "lock"))]


class Fleets(Child):
    """The process of simulated fleets. It runs while a policy is in shadow, and exits afterwards."""

    def __init__(self, home: str) -> None:
        self.asked = os.path.join(home, "shadow", "asked.json")
        super().__init__([sys.executable, "-m", "poise.control.worlds", home], os.path.join(home, "shadow", "lock"))

    def start_if_due(self) -> None:
        if os.path.exists(self.asked):
            super().start_if_due()


def every_folder(node: str, nodes: str) -> list[str]:
    """Return the folder of every node that has ever run on this machine."""
    there = [os.path.join(nodes, name) for name in sorted(os.listdir(nodes))] if os.path.isdir(nodes) else []
    return [node, *there] if os.path.isdir(node) else there


def run(home: str, options: list[str]) -> int:
    """Supervise until a request to stop. Return the exit code."""
    control = Child(
        [sys.executable, "-m", "poise.control", home, *(of for of in options if of not in (NO_AGENT, DASHBOARD))],
        os.path.join(home, "lock"),
        defaults=ONE_THREAD,
    )
    nodes, retiring = ([], []) if NO_AGENT in options else agents(home)
    beside = [*exporters(home, options), *dashboards(home, options), Fleets(home)]
    serving: dict[str, Gateway] = {}
    keeps_gateways = UNTIL_IDLE not in options
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that a child's end wakes the sleep below
    wakeup, wake = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    while not stopping and os.path.isdir(home):  # a child would make a home anew that was removed
        if keeps_gateways:
            serving = gateways(home, serving)
        for child in (control, *nodes, *retiring, *beside, *serving.values()):
            child.start_if_due()
        _sleep(wakeup)
        code = control.ended()
        if code in (TOLD_TO_END, CANNOT_START):
            break
        for one in (*nodes, *beside, *serving.values()):
            one.ended()
        retiring = [node for node in retiring if node.ended() != 0]
    say_ending(os.path.join(home, "supervisor"))
    stop_all([control])  # first, so that the nodes' end is no loss to it
    stop_all([*nodes, *retiring])
    stop_all(beside)  # last: the exporter sends what the others have written
    return 0


def stop_all(children: list[Child]) -> None:
    """All at once: a fleet takes no longer than one of its nodes."""
    for child in children:
        child.ask_to_stop()
    asked = time.monotonic()
    for child in children:
        child.stop(asked)


def _sleep(wakeup: int) -> None:
    """Until a signal comes or it is time to look again."""
    import select

    select.select([wakeup], [], [], LOOK_EVERY)
    with contextlib.suppress(BlockingIOError):
        os.read(wakeup, 4096)


def main() -> int:
    home, options = sys.argv[1], sys.argv[2:]
    os.makedirs(home, mode=0o700, exist_ok=True)
    if not take(os.path.join(home, "supervisor")):
        return 0  # somebody keeps this home already
    return run(home, options)


if __name__ == "__main__":
    sys.exit(main())

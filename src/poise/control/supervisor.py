"""Keeps a control plane and its agents alive on one machine. Standard library only; run as a file:

    python -S supervisor.py HOME [--no-agent] [--dashboard] [--until-idle] [options of the control plane …]

The supervisor runs one agent for this machine; or one for each node of a declared fleet (`fleet.json`); or, for each
cluster (`NAME/cluster.json`), one process that keeps the agents of the cluster's machines (`local` is this machine); or
none: then this machine only schedules, or stands by to.
An agent retires the nodes of an earlier fleet: it ends once what they left running, since their work has been given up.
A gateway (`poise serve`) of this home whose processes were all killed is restarted at the same address. A gateway that
was told to stop is not, and gateways keep running when the supervisor exits.

With `--traces URL` it also runs the exporter of traces, with `--dashboard` the dashboard, and while a policy is in
shadow (`shadow/asked.json`) the process of its simulated fleet.

A child that exits is restarted: at once the first time, then after a pause that doubles up to five seconds. If the
control plane exits with code 0 (it was told to) or 3 (it cannot start until a person acts), the supervisor stops the
agents and exits. Processes that already hold the locks (children of a killed supervisor) are left alone, and replaced
only when they are gone.
"""

# pathlib is the slowest import here; json and socket are imported only if needed:
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
LOCAL = "local"
NO_AGENT = "--no-agent"
DASHBOARD = "--dashboard"
LISTEN = "--listen"
TRACES = "--traces"
UNTIL_IDLE = "--until-idle"
BOOT = "/proc/sys/kernel/random/boot_id"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy starts one thread per core at import. The control plane multiplies no matrices, so they would idle."""


class Child:
    """One process to keep alive. It holds the file `lock` while it lives. `defaults` are environment variables for it,
    used if they are not set already.
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
        """Return the exit code if it has just exited; it is restarted after a pause."""
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
        """Wait until it exits; kill it `stop_seconds` after `asked` (monotonic seconds)."""
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
        except FileNotFoundError:  # it exited in order
            return
        import json
        import socket

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(self.record) as file, open(BOOT) as boot:
                told = json.load(file)
                if told.get("ending") or told["boot"] != boot.read():  # it was told to end, or the machine was rebooted
                    os.unlink(self.record)
                    os.unlink(self.lock)
                    return
            with socket.socket(socket.AF_INET6 if ":" in told["host"] else socket.AF_INET) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if told.get("shared"):  # other gateways of its group listen at this address, too
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listening.bind((told["host"], told["port"]))
                if told.get("listens", True):
                    listening.listen(2048)
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
        except BlockingIOError:  # it is alive
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
    """Acquire the lock and keep it. Checks of a lock share it for an instant, so retry for 0.5 s."""
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
    """Mark our lock as ending: starters of another supervisor wait for it. (`poise.drivers.lock`)"""
    with contextlib.suppress(OSError), open(lock, "ab") as file:
        file.write(b"ending\n")


def agents(home: str) -> tuple[list[Child], list[Child]]:
    """Return the agents of this machine or of the declared fleet's nodes, and those that retire former nodes."""
    program = [sys.executable, "-m", "poise.agent", home]
    declared = os.path.join(home, "fleet.json")
    node, nodes = (os.path.join(home, name) for name in ("node", "nodes"))
    here = Child(program, os.path.join(node, "lock"))
    clusters = [name for name in sorted(os.listdir(home)) if os.path.exists(os.path.join(home, name, "cluster.json"))]
    if clusters:
        former = [folder for folder in every_folder(node, nodes) if folder != node or LOCAL not in clusters]
        kept_here = [here if name == LOCAL else keeper(home, name) for name in clusters]
        return kept_here, [retiring(program, folder) for folder in former]
    try:
        with open(declared) as file:
            import json

            names = [node["name"] for node in json.load(file)["nodes"]]
    except FileNotFoundError:
        kept = {node: here}
    except (ValueError, KeyError, TypeError):
        return [], []  # the file is damaged; the control plane reports that
    else:
        folders = {os.path.join(nodes, name): name for name in names}
        kept = {
            folder: Child([*program, "--declared", declared, "--name", name], os.path.join(folder, "lock"))
            for folder, name in folders.items()
        }
    left = [folder for folder in every_folder(node, nodes) if folder not in kept]
    return list(kept.values()), [retiring(program, folder) for folder in left]


def keeper(home: str, name: str) -> Child:
    """Return the process that keeps the agents of a cluster's machines."""
    program = [sys.executable, "-m", "poise.agent.on_substrate", home, name]
    return Child(program, os.path.join(home, name, "lock"), CLUSTER_STOP_SECONDS)


def retiring(program: list[str], folder: str) -> Child:
    return Child([*program, "--retire", folder], os.path.join(folder, "lock"))


def dashboards(home: str, options: list[str]) -> list[Child]:
    """Return the dashboard, if it is enabled. It listens to other machines if the control plane does."""
    if DASHBOARD not in options:
        return []
    beyond = [LISTEN, options[options.index(LISTEN) + 1]] if LISTEN in options else []
    return [Child([sys.executable, "-m", "poise.dashboard", home, *beyond], os.path.join(home, "dashboard"))]


def exporters(home: str, options: list[str]) -> list[Child]:
    """Return the exporter of traces, if it is enabled."""
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
    signal.signal(signal.SIGCHLD, lambda *_: None)  # makes the exit of a child wake the sleep below
    wakeup, wake = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `poise serve` blocks signals while it starts
    while not stopping and os.path.isdir(home):  # a child would create a removed home again
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
    stop_all([control])  # first, so that it does not count the nodes as lost
    stop_all([*nodes, *retiring])
    stop_all(beside)  # last: it exports what the others have written
    return 0


def stop_all(children: list[Child]) -> None:
    """Stop all in parallel: a fleet takes no longer than its slowest node."""
    for child in children:
        child.ask_to_stop()
    asked = time.monotonic()
    for child in children:
        child.stop(asked)


def _sleep(wakeup: int) -> None:
    """Sleep until a signal or the next check."""
    import select

    select.select([wakeup], [], [], LOOK_EVERY)
    with contextlib.suppress(BlockingIOError):
        os.read(wakeup, 4096)


def main() -> int:
    home, options = sys.argv[1], sys.argv[2:]
    os.makedirs(home, mode=0o700, exist_ok=True)
    if not take(os.path.join(home, "supervisor")):
        return 0  # another supervisor keeps this home
    return run(home, options)


if __name__ == "__main__":
    sys.exit(main())

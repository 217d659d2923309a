"""A real Ray cluster of two raylets, and a home whose nodes they are: on one machine, or each in its own network."""

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poise.drivers.lock import holder
from poise.model.reports.nodes import NodeReport
from system.living import PATIENCE, POISE, Living, ended, free_port, until
from system.networks import Networks

RAY = str(Path(sys.executable).with_name("ray"))
NODES = ("a", "b")
FREE = """
import json, ray, sys
from ray._private.state import available_resources_per_node
ray.init(address=sys.argv[1], namespace="others", log_to_driver=False)
free = available_resources_per_node()
there = [node for node in ray.nodes() if node["Alive"]]
there = [node for node in ray.nodes() if node["Alive"]]
print(json.dumps({node["NodeName"]: free.get(node["NodeID"], {}).get("CPU", 0.0) for node in there}))
"""


class OnRay:
    """A cluster of two raylets with two CPUs each, whatever this machine has, and a home whose nodes they are. With
    `networks` each of them is in its own; the control plane is where the first one is.
    """

    def __init__(self, living: Living, networks: Networks | None = None, *options: str, listen: str = "") -> None:
        self.living = living
        self.options = options
        self.networks = networks
        self.folder = Path(tempfile.mkdtemp(prefix="poise-ray-"))
        (self.folder / "token").write_text(secrets.token_hex(32))
        (self.folder / "token").chmod(0o600)
        self.raylets: dict[str, subprocess.Popen[bytes]] = {}
        first = networks.addresses[NODES[0]] if networks else "127.0.0.1"
        self.address, self.listen = f"{first}:{free_port()}", listen or f"{first}:{free_port()}"
        for node in NODES:
            self.start(node)
        self.up(f"ray:{self.address}")

    @property
    def token(self) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "token")}

    def up(self, on: str) -> None:
        done = ended(
            subprocess.Popen(
                [
                    *self.inside(NODES[0]),
                    POISE,
                    "up",
                    "--port",
                    "0",
                    "--on",
                    on,
                    "--listen",
                    self.listen,
                    *self.options,
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.living.environment(**self.token),
            )
        )
        assert done.code == 0, done.err
        until(lambda: [self.node(name).status for name in NODES] == ["up", "up"], "both have joined", self.messages)

    def inside(self, node: str) -> list[str]:
        """What a command is typed behind to run on the machine of a node."""
        return self.networks.inside(node) if self.networks else []

    def start(self, node: str) -> None:
        """`ray start` is the whole set-up of a machine."""
        head = [
            "--head",
            "--port",
            self.address.split(":")[1],
            "--temp-dir",
            str(self.folder),
            "--include-dashboard=false",
        ]
        joins = head if node == NODES[0] else ["--address", self.address]
        size = ["--disable-usage-stats", "--num-cpus", "2", "--num-gpus", "0", "--object-store-memory", str(80 * 10**6)]
        there = ["--node-ip-address", self.networks.addresses[node]] if self.networks else []
        said = self.folder / f"{node}.log"
        with said.open("wb") as messages:
            self.raylets[node] = subprocess.Popen(
                [
                    *self.inside(node),
                    RAY,
                    "start",
                    "--block",
                    "--disable-usage-stats",
                    "--node-name",
                    node,
                    *joins,
                    *size,
                    *there,
                ],
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                env=self.living.environment(**self.token),
                start_new_session=True,
            )
        until(lambda: "Ray runtime started" in said.read_text(), "Ray has started", self.messages)

    def asks(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A program of others on the same cluster."""
        return subprocess.Popen(
            [*self.inside(NODES[0]), sys.executable, "-c", program, self.address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.living.environment(**self.token),
        )

    def free(self) -> dict[str, float]:
        """CPUs that Ray would give to others."""
        out, _ = self.asks(FREE).communicate(timeout=PATIENCE)
        found: dict[str, float] = json.loads(out.splitlines()[-1])
        return found

    def node(self, name: str) -> NodeReport:
        return next((node for node in self.living.client().nodes() if node.name == name), unknown(name))

    def raylet(self, node: str) -> int:
        """Its process: a child of what started it."""
        children = Path(f"/proc/{self.raylets[node].pid}/task/{self.raylets[node].pid}/children").read_text().split()
        return next(int(pid) for pid in children if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def agent(self, node: str) -> int:
        folders = list((self.living.home.root / "on-ray").glob(f"*/{node}/node/lock"))
        return holder(folders[0]) if folders else 0

    def messages(self) -> str:
        said = [path.read_text()[-2000:] for path in self.living.home.root.glob("on-ray/*/*/poise.log")]
        return "\n".join([self.living.messages()[-4000:], *said])

    def submit(self, run: str, **fields: Any) -> str:
        spec = {"run": ["sh", "-c", run], "resources": {"cpu": 2}} | fields
        return self.living.client().submit(spec)

    def where(self, job: str) -> list[str]:
        return [task.node for task in self.living.client().job(job).tasks]

    def close(self) -> None:
        for process in reversed(self.raylets.values()):
            process.terminate()
        for process in self.raylets.values():
            process.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)


def unknown(name: str) -> NodeReport:
    return NodeReport(
        name=name,
        status="unknown",
        cpu=0,
        cpu_used=0,
        memory=0,
        memory_used=0,
        running=0,
        queued=0,
        devices=(),
        labels={},
    )


@contextlib.contextmanager
def on_two_machines(networks: Networks | None = None) -> Iterator[OnRay]:
    """All of it, and nothing left behind."""
    living = Living()
    on_ray = None
    try:
        on_ray = OnRay(living, networks)
        yield on_ray
        assert living.poise("down", "--cancel").code == 0
        until(lambda: set(on_ray.free().values()) == {2.0}, "all is given back", on_ray.messages)
        on_ray.close()
    except BaseException:
        living.destroy()
        if on_ray is not None:
            shutil.rmtree(on_ray.folder, ignore_errors=True)
        raise
    living.close()

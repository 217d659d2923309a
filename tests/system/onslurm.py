"""A real Slurm, and a home whose nodes are allocations there."""

from pathlib import Path

from system.living import Living, free_port, until
from system.slurm_cluster import SlurmCluster


class OnSlurm:
    """A cluster, and a home whose nodes are allocations there."""

    def __init__(self, cluster: SlurmCluster, living: Living) -> None:
        self.cluster, self.living = cluster, living
        machines = living.home.root / "tmp"  # pilots keep their nodes there: what they leave is found
        machines.mkdir(parents=True, mode=0o700)
        living.variables |= cluster.variables | {"TMPDIR": str(machines)}

    def up(self, on: str) -> None:
        done = self.living.poise("up", "--port", "0", "--on", on, "--listen", f"127.0.0.1:{free_port()}")
        assert done.code == 0, done.err

    def submit(self, run: str, **fields: object) -> str:
        return self.living.client().submit({"run": ["sh", "-c", run], "resources": {"cpu": 1}, **fields})

    def until_running(self, job: str, epoch: int = 1) -> str:
        """The node that it runs on."""
        client = self.living.client()
        until(
            lambda: client.job(job).status == "running" and client.job(job).tasks[0].epoch == epoch,
            f"{job} runs",
            self.messages,
        )
        return client.job(job).tasks[0].node

    def allocations(self) -> list[Path]:
        return sorted((self.living.home.root / "slurm" / "allocations").glob("*"))

    def messages(self) -> str:
        said = [path.read_text()[-2000:] for path in self.living.home.root.glob("slurm/allocations/*/pilot.log")]
        return "\n".join([self.living.messages()[-4000:], *said, str(self.cluster.jobs())])

"""A real Slurm, and a home whose nodes are allocations there."""

from pathlib import Path

from system.living import Living
from system.slurm_cluster import SlurmCluster
from system.substrate import OnSubstrate


class OnSlurm(OnSubstrate):
    """A cluster, and a home whose nodes are allocations there."""

    def __init__(self, cluster: SlurmCluster, living: Living) -> None:
        self.cluster, self.living = cluster, living
        machines = living.home.root / "tmp"  # pilots keep their nodes there: what they leave is found
        machines.mkdir(parents=True, mode=0o700)
        living.variables |= cluster.variables | {"TMPDIR": str(machines)}

    def allocations(self) -> list[Path]:
        return sorted((self.living.home.root / "slurm" / "allocations").glob("*"))

    def messages(self) -> str:
        said = [path.read_text()[-2000:] for path in self.living.home.root.glob("*/allocations/*/pilot.log")]
        nodes = self.living.poise("nodes")
        return "\n".join([self.living.messages()[-4000:], *said, nodes.text, nodes.err, str(self.cluster.jobs())])

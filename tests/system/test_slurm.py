"""Poise on a real Slurm."""

from collections.abc import Iterator

import pytest

from system.living import until
from system.slurm_cluster import SlurmCluster, slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm() as cluster:
        yield cluster


def test_the_cluster_runs_jobs_and_forgets_them_soon(cluster: SlurmCluster) -> None:
    out = cluster.run / "out"
    job = cluster.call("sbatch", "--parsable", f"--output={out}", "--wrap", "hostname").strip()
    until(lambda: job not in cluster.jobs(), "it has ended", cluster.messages)
    assert out.read_text()

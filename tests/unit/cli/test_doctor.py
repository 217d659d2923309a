"""What `poise doctor` says of the cluster of a home."""

from pathlib import Path

from poise.cli.doctor import _clusters
from poise.config import Cluster, Home
from poise.drivers.clusters import keep_clusters, lock_of, write_answer, write_requests
from poise.drivers.lock import take_lock
from poise.model.reports.status import Request


def test_machines_that_work_waits_for_are_told_and_what_is_refused_is_a_warning(tmp_path: Path) -> None:
    home, cluster = Home(tmp_path), Cluster(name="slurm", address="main", listen="0.0.0.0:7718")
    keep_clusters(home, cluster)
    write_answer(home, cluster, None)
    waits, refused = Request(text="job 7: pending"), Request(text="no allocation for 3 tasks", refused=True)
    write_requests(home, cluster, [waits, refused])
    assert [check.name for check in _clusters(home)] == ["Slurm"], "nobody keeps its agents, so that is an old list"
    with take_lock(lock_of(home, cluster), "keeper"):
        _, first, second = _clusters(home)
    assert (first.status, first.text) == ("ok", waits.text)
    assert (second.status, second.text, second.hint) == ("warn", refused.text, "poise doctor --on slurm:main")

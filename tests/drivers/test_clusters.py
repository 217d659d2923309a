"""Names of clusters, and what is left of one."""

from pathlib import Path

import pytest

from poise.cli.main import main
from poise.config import Home
from poise.drivers.clusters import keep_clusters, parse_cluster, write_left
from poise.errors import Fault, InputError


def test_a_cluster_may_have_a_name_of_its_own() -> None:
    one = parse_cluster("east=slurm:gpu,short")
    assert (one.name, one.driver, one.address, one.on) == ("east", "slurm", "gpu,short", "east=slurm:gpu,short")
    one = parse_cluster("kubernetes:a=b")
    assert (one.name, one.driver, one.address) == ("kubernetes", "kubernetes", "a=b")


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "A", "1a", "a" * 21, "a\n", "a-b", "local", "nodes", "logs", "ssh", "authority"]
)
def test_a_name_that_is_no_folder_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of a cluster"):
        parse_cluster(f"{name}=slurm")


def test_down_says_once_what_is_left_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    home, cluster = Home(tmp_path), parse_cluster("kubernetes:east")
    keep_clusters(home, cluster)
    fault = Fault("its Pods are still there", have="the API server does not answer", hint="`kubectl delete`")
    write_left(home, cluster, fault.record)
    assert main(["down"]) == 0
    assert "its Pods are still there: the API server does not answer; `kubectl delete`" in capfd.readouterr().err
    assert main(["down"]) == 0
    assert "still there" not in capfd.readouterr().err

"""Names of clusters."""

import pytest

from poise.drivers.clusters import parse_cluster
from poise.errors import InputError


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

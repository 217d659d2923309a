"""The files of a job reach its node, its retry and each job of a schedule, and are kept for as long as it is known."""

from typing import Any

import pytest

from poise.control.storehouse import trees_of
from poise.errors import SpecError
from poise.kernel.changing import to_retry
from poise.kernel.explain import status_report
from poise.kernel.messages import AddToken
from poise.model.messages import Attempt
from poise.model.spec import compile_spec
from poise.model.tenants import HOME, Role
from poise.model.trees import Tree
from poise.testing import World

SENT = {"tree": "ab" * 32, "folder": "sub", "everywhere": True}
TREE = Tree(hash="ab" * 32, folder="sub", everywhere=True, requirements="r.txt")


def tree(**said: Any) -> Tree | None:
    return compile_spec({"run": "true", **said}, wall=0.0).tree


def test_a_job_brings_what_was_sent_and_says_so_before() -> None:
    assert tree() is tree(sync=False) is None
    assert tree(sync=True) == tree(sync="..") == Tree(hash="")
    assert tree(requirements="r.txt") == Tree(hash="", requirements="r.txt")
    assert tree(sync=SENT, requirements="r.txt") == TREE


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"sync": False, "requirements": "r.txt"}, "requirements"),
        ({"sync": True, "requirements": "../r.txt"}, "requirements"),
        ({"sync": True, "requirements": "/r.txt"}, "requirements"),
        ({"sync": SENT | {"folder": "../.."}}, "sync.folder"),
        ({"sync": SENT | {"tree": "short"}}, "sync.tree"),
        ({"sync": SENT | {"more": 1}}, "sync.more"),
        ({"sync": {}}, "sync.tree"),
        ({"sync": 3}, "sync"),
        ({"sync": True, "calls": True}, "sync"),
    ],
)
def test_what_leads_out_or_contradicts_is_refused(said: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        tree(**said)
    assert field in [record.field for record in refused.value.record.all()]


def test_it_goes_to_the_node_and_to_a_retry() -> None:
    world = World().nodes(1).job("a", sync=SENT, requirements="r.txt").round()
    launch = world.held["n1"][Attempt("j1.main", 1)]
    assert launch.tree == TREE
    world.cancel("a").after("20s")
    compiled, _ = to_retry(world.ledger, "a", HOME)
    assert compiled.tree == TREE


def test_files_are_needed_by_all_that_may_run_again() -> None:
    world = World().nodes(1).job("a", sync=SENT).job("b").job("nightly", sync=SENT | {"tree": "cd" * 32}, every="1h")
    assert {(tenant, one.hash[:2]) for tenant, one in trees_of(world.ledger)} == {("default", "ab"), ("default", "cd")}


def test_machines_of_a_substrate_do_not_count_as_elsewhere() -> None:
    world = World().nodes(3)
    for name in ("slurm", "far"):
        request = world.request()
        world.ask(AddToken(request=request, tenant="default", role=Role.NODE, hash=name[0] * 64, name=name, lasts=0))
    one, other = (token.id for token in world.ledger.tokens.values())
    for name, by in (("n1", "home"), ("n2", one), ("n3", other)):
        world.ledger.nodes[name].by = by
    assert status_report(world.ledger, "1").elsewhere == 2
    assert status_report(world.ledger, "1", substrates=["slurm"]).elsewhere == 1

"""Elastic units beside idle devices: they take what brings enough, once, and no more than their tenant may have."""

from poise.testing import World


def test_what_was_placed_in_the_size_that_pays_is_not_restarted_for_more() -> None:
    """Sixteen devices are idle. The eighth task brings 0.33 of what the first does, the ninth 0.29."""
    world = World().nodes(1, cpu=16, gpus=16).job("wide", workers="1..16", gpu=1, expect="20h", checkpoint="30s")
    world.round().start(*(f"wide.main[{rank}]" for rank in range(8)))
    assert world.unit("wide").size == 8
    for _ in range(5):
        world.after("10m").round()
    assert (world.status("wide"), world.unit("wide").preempted) == ("running", 0)


def test_elastic_units_of_a_tenant_share_what_its_quota_leaves() -> None:
    world = World().nodes(1, cpu=16, gpus=16).quota("lab", gpu=6)
    for name in ("a", "b"):
        world.submit(
            {"kind": "job", "name": name, "run": "true", "workers": "1..8", "resources": {"gpu": 1}}, tenant="lab"
        )
    world.round()
    assert world.unit("a").size + world.unit("b").size == 6

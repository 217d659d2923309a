"""`poise explain`, drawn."""

import pytest

from poise.cli.explain import _draw_explanation
from poise.testing import World
from unit.asking import explained


def test_who_preempts_what_it_waits_for_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    world = World("poise").nodes(1, cpu=2).job("low", cpu=2, priority="low", expect="10m").round().start("low")
    world.after("1s").job("urgent", cpu=2, priority="urgent", expect="10s").job("next", cpu=2, expect="10m").round()
    _draw_explanation(explained(world, "next"))
    assert "; j2.main preempts it first" in capsys.readouterr().out
    _draw_explanation(explained(world, "urgent"))
    shown = capsys.readouterr().out
    assert "or preempts     j1.main" in shown and "preempts it first" not in shown

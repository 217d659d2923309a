"""Rules on jobs of the past: what they do in the twin, and what comes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from poise.cli.main import main
from poise.drivers.logfile import write_log
from poise.drivers.plugins import choose_document, tried
from poise.kernel.controller import Settings
from poise.model.events import encode_event
from poise.model.workload import Arrival, Workload
from poise.policy.suites import policy_named
from poise.units import HOUR
from poise_lab.loops import on_jobs, render, tune_loops
from poise_lab.ruled import backtest_on, effect_of
from poise_lab.trial import simulate
from unit.engine.test_twin import arrival, node

ARRIVALS = (arrival(0, 3600), *(arrival(10 * at, 3000 if at % 3 else 30) for at in range(1, 60)))
SHORTEST_FIRST = {
    "kind": "rules",
    "every": "30s",
    "rules": [
        {
            "name": "long-queue",
            "trigger": {"waiting": "> 10"},
            "clear": {"waiting": "< 2"},
            "actions": [{"set_policy": "sjf"}],
        }
    ],
}


def told(document: dict[str, Any], arrivals: tuple[Arrival, ...] = ARRIVALS) -> Any:
    workload, nodes, policy = Workload(name="made", arrivals=arrivals), [node("n1"), node("n2")], policy_named("fifo")
    found, without = backtest_on(workload, nodes, policy, Settings(), document)
    return found, effect_of(workload, nodes, policy, Settings(), document, without)


def test_a_rule_that_sets_the_policy_has_its_effect() -> None:
    """The queue is long soon; from then on the shortest goes first, which is better in the mean for all that wait."""
    found, effect = told(SHORTEST_FIRST)
    assert (found.rules[0].firings, found.rules[0].mode) == (1, "off")
    assert effect.firings == {"long-queue": 1}
    mean = effect.figures[0]
    assert (mean.name, effect.jobs) == ("mean completion", 60)
    assert mean.live / HOUR > 5
    assert mean.low <= mean.difference <= mean.high < 0


def test_a_rule_that_changes_priorities_has_its_effect() -> None:
    """While the queue is long, the class of brief jobs goes first."""
    brief = tuple(
        replace(one, units=tuple(replace(unit, kind="brief") for unit in one.units)) if place % 3 == 0 else one
        for place, one in enumerate(ARRIVALS)
    )
    action = {"change_priority": {"to": "high", "class": "brief"}}
    rule = {**SHORTEST_FIRST["rules"][0], "actions": [action]}  # type: ignore[dict-item]
    policy = tried(choose_document({"kind": "policy", "name": "by-class", "order": "urgency"}))
    workload, nodes = Workload(name="made", arrivals=brief), [node("n1"), node("n2")]
    found, without = backtest_on(workload, nodes, policy, Settings(), {**SHORTEST_FIRST, "rules": [rule]})
    effect = effect_of(workload, nodes, policy, Settings(), {**SHORTEST_FIRST, "rules": [rule]}, without)
    assert found.rules[0].actions == {"change_priority": 1}
    assert effect.firings == {"long-queue": 1}
    assert effect.figures[0].high < 0


def test_a_rule_that_does_not_fire_changes_nothing() -> None:
    calm = {**SHORTEST_FIRST, "rules": [{**SHORTEST_FIRST["rules"][0], "trigger": {"waiting": "> 1000"}}]}  # type: ignore[dict-item]
    found, effect = told(calm)
    assert (found.rules[0].firings, effect.firings) == (0, {"long-queue": 0})
    assert {(figure.difference, figure.low, figure.high) for figure in effect.figures} == {(0, 0, 0)}


def test_a_node_that_a_rule_closes_is_closed_in_the_twin() -> None:
    """Work that fails on its node has the node closed: the other one does it all."""
    document = {
        "kind": "rules",
        "rules": [{"name": "busy", "trigger": {"gpu_utilization": "> 50%"}, "actions": [{"cordon": True}]}],
    }
    _, effect = told(document, ARRIVALS[:30])
    assert effect.firings["busy"] >= 2
    assert effect.figures[0].difference > 0, "nodes that are closed while they are busy do less"


def test_the_command_simulates_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules, fleet = tmp_path / "rules.yaml", Path(__file__).resolve().parents[3] / "examples" / "cluster.yaml"
    rules.write_text(json.dumps(SHORTEST_FIRST))
    line = ["rules", "test", str(rules), "--from", "poisson:jobs=40,rate=60", "--fleet", str(fleet), "--policy", "fifo"]
    assert main([*line, "--effect"]) == 0
    out = capsys.readouterr().out
    assert "with the rules in force, 40 jobs simulated: fired long-queue" in out
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).get("effect") is None


def test_a_log_is_simulated_on_the_fleet_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[bytes] = []
    observe = lambda event: events.append(encode_event(event))  # noqa: E731
    workload, nodes = Workload(name="made", arrivals=ARRIVALS), [node("n1"), node("n2")]
    simulate(workload, nodes, policy_named("fifo"), Settings(), observe=observe)
    log, rules, fleet = tmp_path / "log", tmp_path / "rules.yaml", tmp_path / "fleet.yaml"
    write_log(log, events, start=None, written_by="test")
    rules.write_text(json.dumps(SHORTEST_FIRST))
    many = "{cpu: 64, memory: 64GiB, count: 64, devices: [{model: V100, count: 4}]}"
    fleet.write_text(f"kind: fleet\nnodes: {{n: {many}}}\n")
    line = ["rules", "test", str(rules), "--from", str(log)]
    assert main([*line, "--effect"]) == 0
    assert "fired long-queue 1 times" in capsys.readouterr().out
    assert main([*line, "--effect", "--fleet", str(fleet)]) == 0
    assert "fired long-queue 0 times" in capsys.readouterr().out
    for flag in (["--fleet", str(fleet)], ["--policy", "sjf"]):
        assert main([*line, *flag]) == 1
        assert f"`{flag[0]}` is for a simulation" in capsys.readouterr().err


LOOP = {
    "kind": "rules",
    "rules": [
        {
            "name": "leave-room",
            "trigger": "nodes_up > 0",
            "actions": [
                {
                    "control": {
                        "knob": "quota.gpu",
                        "of": "default",
                        "target": {"fleet_use": "50%"},
                        "least": 1,
                        "most": 16,
                    }
                }
            ],
        }
    ],
}


def test_a_control_loop_is_tuned_in_simulations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backlog of jobs of 20 minutes on 16 devices: the use follows the quota as jobs end."""
    workload = Workload(name="made", arrivals=tuple(arrival(60 * at, 1200) for at in range(400)))
    nodes = [node(f"n{at}", gpus=8) for at in range(2)]
    [loop] = tune_loops(LOOP, on_jobs(workload, nodes, policy_named("fifo"), Settings()))
    assert (loop.rule, loop.knob, loop.target) == ("leave-room", "quota.gpu of default", 0.5)
    assert loop.period > 2
    auto, tuned = loop.responses
    assert (auto.label, tuned.label) == ("auto", "tuned")
    for one in (auto, tuned):
        assert one.steps == pytest.approx(400, abs=5)
        assert one.error < 0.1, "eight of 16 devices are in use, or seven or nine"
        assert one.within > 0.5
    page = render([loop])
    assert "leave-room: fleet_use, target 0.5" in page
    assert page.count("<polyline") == 4

    rules, fleet = tmp_path / "rules.yaml", Path(__file__).resolve().parents[3] / "examples" / "cluster.yaml"
    rules.write_text(json.dumps(LOOP))
    line = ["rules", "tune", str(rules), "--from", "poisson:jobs=60,rate=200", "--fleet", str(fleet), "--json"]
    assert main([*line, "--report", str(tmp_path / "page.html")]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert told["rule"] == "leave-room"
    assert "polyline" in (tmp_path / "page.html").read_text()
    rules.write_text(json.dumps(SHORTEST_FIRST))
    assert main(line[:-1]) == 1
    assert "has a control loop" in capsys.readouterr().err


def test_a_parameter_of_the_policy_changes_in_the_twin() -> None:
    """Only the wait counts with full fairness, so the order becomes that of arrival."""
    control = {"knob": "policy.fairness", "target": {"waiting": 5}, "effect": "lowers", "least": 0, "most": 1}
    rule = {"name": "fair", "trigger": "nodes_up > 0", "actions": [{"control": control}]}
    workload, nodes, policy = Workload(name="made", arrivals=ARRIVALS), [node("n1"), node("n2")], policy_named("poise")
    document = {"kind": "rules", "rules": [rule], "budget": 1000}
    _, without = backtest_on(workload, nodes, policy, Settings(), document)
    effect = effect_of(workload, nodes, policy, Settings(), document, without)
    assert effect.firings == {"fair": 1}
    assert effect.figures[0].difference != 0

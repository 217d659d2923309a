"""Control loops on the replicas of a service, tuned in the twin."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from poise.cli.main import main
from poise.drivers.yamlfile import load_kind
from poise.kernel.backtest import backtest
from poise.kernel.ledger import Ledger
from poise.model.events import RuleSteered, ServicesMeasured
from poise.model.rules import compile_rules
from poise.model.served import served_of
from poise_lab.loops import on_service, render, tune_loops
from poise_lab.steered import events_of, simulated

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
RULES, SERVICE, WORLD = (EXAMPLES / f"{name}.yaml" for name in ("hold-latency", "steered-service", "steered-world"))
CAPTIONS = simulated(SERVICE, WORLD, "poisson:rate=6,requests=9000")
"""Two replicas answer four requests a second, and refuse what would be late. Five have a P99 of 3.8 s of 5 s."""


def test_a_loop_holds_the_latency_of_a_simulated_service() -> None:
    document = load_kind(RULES, "rules")
    events = events_of(CAPTIONS, "captions", document)
    steps = [event.value for event in events if isinstance(event, RuleSteered)]
    assert steps[-1] in (2, 3)
    states = [served_of(event.services["captions"]) for event in events if isinstance(event, ServicesMeasured)]
    assert (states[-1].refused, states[-1].ready, states[-1].wanted) == (0, 2 + steps[-1], 2 + steps[-1])
    assert fmean(one.p99 / one.objective for one in states[-30:]) == pytest.approx(0.8, abs=0.2)
    few = simulated(SERVICE, WORLD, "poisson:rate=6,requests=900")
    assert events_of(few, "captions", document) == events_of(few, "captions", document)
    told = backtest(events, compile_rules(document), Ledger())
    assert (told.rules[0].firings, told.missing) == (1, ())


def test_gains_come_from_a_relay() -> None:
    document = load_kind(RULES, "rules")
    [loop] = tune_loops(document, on_service(CAPTIONS))
    assert (loop.rule, loop.knob, loop.signal) == (
        "hold-latency", "replicas of captions", "service_p99_of_objective"
    )  # fmt: skip
    assert loop.period >= 2
    auto, tuned = loop.responses
    assert 0.1 < tuned.proportional < 1
    for one in (auto, tuned):
        assert one.measured[0] > 1.2, "two replicas are too few"
        assert one.error < 0.25
        assert max(one.output) < 1, "it needs no more than it has"
        assert one.output[0] == 0
    assert render([loop]).count("<polyline") == 4


def test_the_command_takes_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["rules", "tune", str(RULES), "--service", str(SERVICE)]
    requests = ["--from", "poisson:rate=6,requests=1500"]
    assert main([*line, "--world", str(WORLD), *requests, "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert told["knob"] == "replicas of captions"
    assert main([*line, *requests]) == 1
    assert "`--service` needs `--world`" in capsys.readouterr().err
    assert main(["rules", "tune", str(RULES), "--from", "poisson:jobs=5"]) == 1
    assert "the loop of rule `hold-latency` needs a service" in capsys.readouterr().err
    for flag in ("--fleet", "--policy"):
        assert main([*line, "--world", str(WORLD), *requests, flag, "x"]) == 1
        assert f"`{flag}` is for jobs, not for a service" in capsys.readouterr().err
    never = tmp_path / "never.yaml"
    never.write_text(RULES.read_text().replace('{nodes_up: ">0"}', '{nodes_up: ">9"}'))
    few = ["--world", str(WORLD), "--from", "poisson:rate=6,requests=300"]
    assert main(["rules", "tune", str(never), *line[3:], *few]) == 0
    assert "no gains: the rule never fired" in capsys.readouterr().out
    other = tmp_path / "other.yaml"
    other.write_text(SERVICE.read_text().replace("captions", "other"))
    assert main(["rules", "tune", str(RULES), "--service", str(other), "--world", str(WORLD), *requests]) == 1
    assert "sets the replicas of other" in capsys.readouterr().err
    assert main(["rules", "tune", str(RULES), "--world", str(WORLD), *requests]) == 1
    assert "`--world` is for a service" in capsys.readouterr().err

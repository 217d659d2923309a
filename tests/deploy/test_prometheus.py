"""The real Prometheus scrapes a running Poise: boards have data, names are right, an alert fires and resolves."""

import json
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from system.living import until

from deploy.debian import DEPLOY
from deploy.exported import metrics_in
from deploy.monitored import Monitored, monitored
from poise.control.metrics import METRICS

BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
VARIABLES = {"$__rate_interval": "1m", "$job": ".+", "$service": ".+"}
SELDOM = {
    "poise_node_lost",
    "poise_rejected_decisions_total",
    "poise_refused_requests_total",
    "poise_budget_spent_ratio",
    "poise_electricity_dollars_total",
}
"""Those that have no series until something goes wrong, or until there is a budget or a price."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    with monitored(tmp_path_factory.mktemp("monitored")) as found:
        yield found


def queries(board: Path) -> list[str]:
    """As Grafana sends them when everything is chosen."""
    found = []
    for panel in json.loads(board.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append(expression)
    return found


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_every_query_of_a_board_is_answered(lab: Monitored, board: Path) -> None:
    asked = queries(board)
    assert len(asked) > 10
    left = set(asked)

    def answered() -> bool:
        left.difference_update([one for one in left if lab.query(one)])
        return not left

    until(answered, "every query has an answer", lambda: "\n".join(sorted(left)) + lab.said())


def test_what_is_declared_is_exported_and_nothing_else(lab: Monitored) -> None:
    declared = {metric.name for metric in METRICS}
    found: set[str] = set()

    def all_there() -> bool:
        names = [of["metric"]["__name__"] for of in lab.query('{job="poise", __name__=~"poise_.+"}')]
        found.update(re.sub("_(bucket|count|sum)$", "", name) for name in names)
        return declared - SELDOM <= found

    until(
        all_there,
        "everything that is declared is scraped",
        lambda: f"{sorted(declared - SELDOM - found)}" + lab.said(),
        40,
    )
    assert found <= declared


def test_boards_name_only_metrics_that_are_exported(lab: Monitored) -> None:
    """Their queries may have an answer without: `or vector(0)` has one."""
    for board in BOARDS:
        for query in queries(board):
            for name in (
                metrics_in(query) - SELDOM - {"serve_deployment_error_counter_total", "vllm:request_errors_total"}
            ):
                assert lab.query(f'count({{__name__="{name}"}})'), (board.name, name)


def test_an_alert_fires_and_resolves(lab: Monitored) -> None:
    assert "PoiseNodeLost" not in lab.heard.fired
    lab.node.leave()
    until(lambda: "PoiseNodeLost" in lab.heard.fired, "the loss of a node alerts", lab.said)
    assert "PoiseNodeLost" not in lab.heard.resolved
    lab.node.join()
    until(lambda: "PoiseNodeLost" in lab.heard.resolved, "the alert is resolved once the node is back", lab.said)


@pytest.mark.skipif(find_spec("grafana_foundation_sdk") is None, reason="grafana-foundation-sdk is not installed")
def test_the_boards_are_as_the_script_writes_them() -> None:
    sys.path.append(str(DEPLOY / "grafana"))
    import boards  # type: ignore[import-not-found]  # the script

    assert [path.stem for path in BOARDS] == sorted(board.name for board in boards.BOARDS)
    for board in boards.BOARDS:
        assert json.loads((DEPLOY / "grafana" / f"{board.name}.json").read_text()) == boards.made(board), board.name

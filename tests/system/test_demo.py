"""The whole demo, with real processes and kills: every promise is kept, and the page is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from browser import running
from needed import needs

from system.living import until

needs("sklearn", "demo")


@pytest.mark.slow
def test_every_promise_of_the_demo_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "poise.cli.main", "demo", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["live"]["killed"] == ["a training worker", "the agent of node fast", "the control plane"]
    assert told["live"]["training"]["fewest"] > 0
    assert [row["policy"] for row in told["twin"]] == ["poise", "fifo", "static", "round-robin"]
    page = (tmp_path / told["page"]).read_text()
    assert "kill -9: the control plane" in page
    assert "round-robin" in page
    assert "dashboard: http://127.0.0.1:" in done.stderr
    kept = tmp_path / told["dashboard"]
    with running() as browser:
        browser.open(kept)
        shown = "document.querySelector('[data-figure=nodes_up]')?.textContent === '2'"
        until(lambda: browser.evaluate(shown), "it shows the fleet")
        browser.evaluate("document.querySelector('nav a[href=\"/training\"]').click()")
        until(lambda: browser.evaluate("document.querySelectorAll('tbody tr').length === 1"), "training is there")
        assert browser.errors == []

"""The address of the control plane leads a browser to the dashboard, and tells it nothing else."""

from pathlib import Path

import msgspec
import pytest

from poise.drivers.dashboards import Running
from poise.drivers.lock import take_lock
from poise.testing import World
from unit.control.desk import Desk


def test_a_browser_is_led_to_the_dashboard_that_runs_and_to_none_that_was_killed(tmp_path: Path) -> None:
    desk = Desk(World(), tmp_path)
    assert desk.call("GET", "/", who=None).code == "E120"
    desk.home.dashboard_endpoint.write_bytes(msgspec.json.encode(Running(7719, 7720)))
    assert desk.call("GET", "/", who=None).code == "E120"
    with take_lock(desk.home.dashboard, "dashboard"):
        answer = desk.call("GET", "/", who=None, host="localhost:7717")
        assert (answer.status, answer.location, answer.body) == (307, "http://127.0.0.1:7719/", b"")
        assert desk.call("GET", "/", who=None, host="evil.example").code == "E131"
        assert desk.call("GET", "/now", who=None).code == "E130"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("head.example:7718", "https://head.example:7720/"),
        ("10.0.0.7", "https://10.0.0.7:7720/"),
        ("[fe80::1]:7718", "https://[fe80::1]:7720/"),
    ],
)
def test_from_another_machine_it_is_reached_by_the_name_that_was_used(host: str, url: str) -> None:
    assert Running(7719, 7720).url_beside("https", host) == url
    assert Running(7719).url_beside("https", host) == "", "it serves this machine only"

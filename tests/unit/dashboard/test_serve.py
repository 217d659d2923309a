from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from poise.config import Home
from poise.dashboard.serve import bind, bind_again
from poise.drivers.dashboards import Running


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_dashboard_serves_at_its_two_ports_again(tmp_path: Path, host: str) -> None:
    with closing(bind(0)) as own, closing(bind(0, host)) as beyond:
        before = Running(own.getsockname()[1], beyond.getsockname()[1])
    home = Home(tmp_path)
    home.dashboard_endpoint.write_bytes(msgspec.json.encode(before))
    with closing(bind_again(home)) as own, closing(bind_again(home, host)) as beyond:
        assert Running(own.getsockname()[1], beyond.getsockname()[1]) == before

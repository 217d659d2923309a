"""What other machines trust a control plane by, as it is kept in a home."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from poise.config import Home
from poise.drivers.authority import ensure_authority, server_context
from poise.drivers.security import ensure_home

MANY = 60


def test_several_that_listen_are_begun_at_once(tmp_path: Path) -> None:
    """As gateways are when a machine starts: each has a whole certificate, and nothing half written is left."""
    home = Home(tmp_path / "home")
    ensure_home(home)
    ensure_authority(home)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: server_context(home, ["127.0.0.1"], "gateway"), range(MANY)))
    assert len(made) == MANY
    assert sorted(path.name for path in home.authority.iterdir()) == ["authority.key", "authority.pem", "gateway.pem"]

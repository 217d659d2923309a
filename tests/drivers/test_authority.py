"""What other machines trust a control plane by, as it is kept in a home."""

import contextlib
import ssl
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


def test_a_server_says_nothing_of_its_own_after_a_handshake(tmp_path: Path) -> None:
    """What it says then would be read by one thread of a client while another one writes, which blocks both."""
    home = Home(tmp_path / "home")
    ensure_home(home)
    trusts = ssl.create_default_context(cadata=ensure_authority(home).decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusts.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = server_context(home, ["127.0.0.1"]).wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.version() == server.version() == "TLSv1.3"
    assert not to_client.pending

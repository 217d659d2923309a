"""The dashboard that `poise up --dashboard` keeps, at the address of the control plane and in a process of its own."""

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from poise.config import Address
from poise.drivers.http import Answer, Connection
from poise.drivers.lock import holder
from poise.drivers.reach import trusting
from system.living import Living, alive, free_port, kill, until


@pytest.fixture(scope="module")
def up() -> Iterator[Living]:
    living = Living()
    try:
        living.up("--dashboard", "--listen", f"127.0.0.1:{free_port()}")
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def control(living: Living) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(living.home.endpoint.read_text())
    return found


def asked(living: Living, url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
    """The answer of whoever serves this address, with its content read."""
    place = urlsplit(url)
    sock = socket.create_connection((place.hostname or "", place.port or 0), 30)
    if place.scheme == "https":
        sock = trusting(Address.parse(control(living)["address"])).wrap_socket(sock, server_hostname=place.hostname)
    with Connection(sock) as connection:
        answer = connection.ask(method, place.path, {"Host": place.netloc} | headers, body)
        answer.content = answer.read()  # type: ignore[attr-defined]
        return answer


def entered(living: Living, link: str) -> str:
    """The cookie of a browser that comes by a link."""
    url, _, secret = link.partition("#link=")
    answer = asked(living, f"{url}session", "POST", json.dumps({"link": secret}).encode())
    assert answer.status == 204
    return answer.headers["set-cookie"]


def who(living: Living, url: str, cookie: str) -> Any:
    answer = asked(living, f"{url}data/whoami", Cookie=cookie.partition(";")[0])
    return json.loads(answer.content)["tenant"] if answer.status == 200 else answer.status  # type: ignore[attr-defined]


def test_the_address_of_the_control_plane_leads_to_it(up: Living) -> None:
    told = up.poise("dashboard", "--json").value
    answer = asked(up, f"http://127.0.0.1:{control(up)['port']}/")
    assert (answer.status, answer.headers["location"]) == (307, told["url"])
    assert who(up, told["url"], entered(up, told["link"])) == "default"
    assert asked(up, told["url"], Host="evil.example").status == 403
    assert holder(up.home.dashboard) not in (0, up.pid("control"))


def test_from_another_machine_it_is_reached_by_tls_with_the_token_of_a_tenant(up: Living) -> None:
    secret = up.poise("token", "add", "--tenant", "ann", "--role", "viewer", "--json").value["secret"]
    theirs = {"POISE_ADDRESS": control(up)["address"], "POISE_TOKEN": secret}
    told = up.poise("dashboard", "--json", **theirs).value
    host, port = Address.parse(control(up)["address"]).host, Address.parse(control(up)["address"]).port
    assert asked(up, f"https://{host}:{port}/").headers["location"] == told["url"]
    assert told["url"].startswith(f"https://{host}:")
    cookie = entered(up, told["link"])
    assert "; Secure" in cookie and "; HttpOnly" in cookie and "; SameSite=Strict" in cookie
    assert who(up, told["url"], cookie) == "ann"
    assert asked(up, told["url"], Host="evil.example").status == 403
    assert asked(up, told["url"], Origin=f"http://{host}").status == 403


def test_one_that_is_killed_is_back_at_its_address_and_its_sessions_are_over(up: Living) -> None:
    told = up.poise("dashboard", "--json").value
    cookie = entered(up, told["link"])
    pid = holder(up.home.dashboard)
    kill(pid)
    again = up.poise("dashboard", "--json").value
    assert again["url"] == told["url"]
    assert holder(up.home.dashboard) not in (0, pid)
    assert who(up, told["url"], cookie) == 401
    assert who(up, told["url"], entered(up, again["link"])) == "default"


def test_it_outlives_the_control_plane(up: Living) -> None:
    told = up.poise("dashboard", "--json").value
    cookie, pid = entered(up, told["link"]), holder(up.home.dashboard)
    before = up.pid("control")
    kill(before)
    until(lambda: not alive(before), "it is gone")
    until(lambda: up.pid("control") not in (0, before), "another one runs", up.messages)
    assert up.client().status().accepting
    until(lambda: who(up, told["url"], cookie) == "default", "pages go on", up.messages)
    assert holder(up.home.dashboard) == pid
    assert asked(up, f"http://127.0.0.1:{control(up)['port']}/").headers["location"] == told["url"]


def test_it_ends_with_poise_and_is_kept_for_the_next_start(up: Living) -> None:
    pid = holder(up.home.dashboard)
    assert up.poise("down").code == 0
    until(lambda: not alive(pid), "it has ended")
    assert not up.home.dashboard_endpoint.exists()
    again = up.poise("up", "--port", "0")
    assert "`--dashboard`" in again.err
    assert up.poise("dashboard", "--json").value["url"]

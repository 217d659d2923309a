"""Where the environment says that control planes are."""

import socket
from pathlib import Path

import pytest

from poise.config import Address, Home
from poise.drivers.reach import door_of, environment_home
from poise.drivers.sockets import notice_loss
from poise.errors import InputError

ONE = Address("one.example", 7718, 64 * "a")
TWO = Address("::1", 7719, 64 * "b")


def test_connections_that_come_from_another_machine_end_when_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        notice_loss(listening, taken=True)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as come:
            assert come.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            idle, every, times, taken = (come.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    assert (idle + every * times, taken) == (5, 10_000)


def test_it_is_that_of_the_home_where_nothing_else_is_said(tmp_path: Path) -> None:
    home = environment_home({"POISE_HOME": str(tmp_path)})
    assert home == Home(tmp_path)
    assert (home.doors, home.addresses) == ((tmp_path / "poise.sock",), "")


def test_those_of_other_machines_are_tried_in_turn(tmp_path: Path) -> None:
    home = environment_home({"POISE_HOME": str(tmp_path), "POISE_ADDRESS": f"{ONE.text}, {TWO.text}"})
    assert home.doors == (ONE, TWO)
    assert [door_of(home, turn) for turn in range(3)] == [ONE, TWO, ONE]
    assert environment_home({"POISE_HOME": str(tmp_path), "POISE_ADDRESS": home.addresses}) == home


def test_several_of_which_one_leads_are_sockets_and_addresses(tmp_path: Path) -> None:
    own, other = tmp_path / "poise.sock", tmp_path / "other" / "poise.sock"
    control = f"{other},{own}, {ONE.text}, "
    home = environment_home({"POISE_HOME": str(tmp_path), "POISE_CONTROL": control})
    assert home.doors == (own, other, ONE)
    assert home.addresses == ""  # its own comes first, and its token counts
    assert environment_home({"POISE_HOME": str(tmp_path / "third"), "POISE_CONTROL": control}).others == ()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("POISE_ADDRESS", "one.example:7718"),
        ("POISE_ADDRESS", f"{ONE.text},"),
        ("POISE_ADDRESS", f"{ONE.text},elsewhere"),
        ("POISE_ADDRESS", f"one..example:7718#{64 * 'a'}"),
        ("POISE_ADDRESS", f"{'one' * 30}:7718#{64 * 'a'}"),
        ("POISE_ADDRESS", f"one.example:{5000 * '7'}#{64 * 'a'}"),
        ("POISE_CONTROL", "one.example:7718#abc"),
        ("POISE_CONTROL", "first/poise.sock,second/poise.sock"),  # of which agents would make others
    ],
)
def test_what_is_no_address_is_told_by_the_name_of_its_variable(variable: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as told:
        environment_home({"POISE_HOME": str(tmp_path), variable: text})
    assert told.value.record.field == variable

"""Servers that hold logs which several control planes share, started once for a file of tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from drivers.etcd_server import EtcdServer
    from drivers.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def postgres() -> "Iterator[PostgresServer]":
    from drivers.postgres_server import running

    with running() as server:
        yield server


@pytest.fixture(scope="module")
def etcd() -> "Iterator[EtcdServer]":
    """Of three members."""
    from drivers.etcd_server import running

    with running() as server:
        yield server

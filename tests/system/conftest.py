"""Fixtures for tests of the whole system."""

import signal
from collections.abc import Iterator

import pytest

from system.living import Living, until
from system.serving import Serving

# A suite started in the background ignores Ctrl-C, and so would every command that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_goes_on_serving() -> Iterator[None]:
    """What a test of a shared home has begun and not ended, since it failed, is not left for the next."""
    before = list(Serving.all)
    yield
    end_serving(before)


def end_serving(before: list[Serving]) -> None:
    for left in [one for one in Serving.all if one not in before]:
        left.end()


@pytest.fixture
def living() -> Iterator[Living]:
    """A home of its own in which nothing runs yet."""
    living, before = Living(), list(Serving.all)
    try:
        yield living
    except BaseException:
        living.destroy()
        raise
    end_serving(before)  # or a test that has failed is told to have leaked what it did not come to end
    living.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Living]:
    """A running control plane with its node, for all tests of a file; they give back what they take."""
    living = Living()
    try:
        living.up()
        client = living.client()
        until(client.nodes, "its node has joined", living.messages)
        client.close()
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest) -> Iterator[Living]:
    """A home in which nothing runs yet, for all tests of a file, with that file's `FILES` in its folder."""
    living = Living()
    for name, text in getattr(request.module, "FILES", {}).items():
        living.file(name, text)
    try:
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()

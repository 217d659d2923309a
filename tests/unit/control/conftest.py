"""Fixtures for tests of the control plane in memory."""

import pytest

from poise.engine import lookahead

FUTURES = 5
"""Followed for an answer; `tests/unit/kernel` and `tests/unit/engine` test the figures, with 20 futures and more."""


@pytest.fixture(autouse=True)
def few_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "AT_ONCE", lookahead.AT_ONCE._replace(futures=FUTURES))

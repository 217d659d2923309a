"""What tests of stores leave behind is closed."""

from collections.abc import Iterator

import pytest

from drivers.notes import leases


@pytest.fixture(autouse=True)
def _closed_leases() -> Iterator[None]:
    yield
    while leases:
        leases.pop().close()

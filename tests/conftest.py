"""Servers that hold logs which several control planes share, started once for a file of tests; and at the end of a long
run, the files that took longest.
"""

import gc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from drivers.etcd_server import EtcdServer
    from drivers.postgres_server import PostgresServer

LONG_RUN_SECONDS = 60
"""Of tests together, beyond which a run says where its time went."""

SHOWN = 10
"""Files that it names."""


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


_last: list[Path] = []
"""The file whose tests run."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Exclude from garbage collection what is there before a file of tests: thousands of collected tests, which code
    that collects garbage by itself would search each time.
    """
    if _last != [item.path]:
        _last[:] = [item.path]
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """`make test` may take ten minutes: which files take most of it, so that it is seen where it grows."""
    took: dict[str, float] = defaultdict(float)
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            took[report.nodeid.partition("::")[0]] += report.duration
    if (total := sum(took.values())) < LONG_RUN_SECONDS:
        return
    terminalreporter.section(f"the longest of {len(took)} files, which took {total:.0f} s", sep="-")
    for name, seconds in sorted(took.items(), key=lambda item: -item[1])[:SHOWN]:
        terminalreporter.write_line(f"{seconds:6.1f} s  {name}")

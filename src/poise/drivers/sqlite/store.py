"""The `Store` port on one SQLite file."""

from collections.abc import Callable
from pathlib import Path

from poise.drivers.grouped import KEEP, QUEUE_LIMIT, GroupedStore
from poise.drivers.sqlite import tables
from poise.drivers.sqlite.log import SqliteLog
from poise.drivers.sqlite.reader import LogReader
from poise.drivers.sqlite.repair import make_whole
from poise.drivers.sqlite.writer import SqliteWriter
from poise.drivers.verified import Event, log


class SqliteStore(GroupedStore, SqliteLog[Event]):
    """`max_bytes` limits the log file; the write-ahead file beside it adds a few MB. `written_by` is the version that
    an older Poise names when it cannot read the log. Otherwise the same as `GroupedStore`.
    """

    def __init__(
        self,
        path: Path,
        encode: Callable[[Event], bytes],
        decode: Callable[[bytes], Event],
        *,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        warn: Callable[[str], None] = log.warning,
        max_bytes: int = 0,
        keep: int = KEEP,
        queue_limit: int = QUEUE_LIMIT,
        written_by: str = "",
    ) -> None:
        SqliteLog.__init__(self, path, decode, warn)
        GroupedStore.__init__(self, encode, call_soon=call_soon, warn=warn, keep=keep, queue_limit=queue_limit)
        last = make_whole(path, warn)
        writer = SqliteWriter(path, last, max_bytes=max_bytes, written_by=written_by)
        self._connection = tables.connect(path)
        self._begin(writer, last)

    @staticmethod
    def open_read_only(path: Path, decode: Callable[[bytes], Event]) -> LogReader[Event]:
        """Return a reader for tools, which works with or without a running control plane."""
        return LogReader(path, decode)

    def _let_go(self) -> None:
        self._connection.close()
        self._writer.close()

"""The durable log on SQLite: one writer thread, group commit, and a checksum in every record.

`append` passes encoded events to a writer thread and returns. The thread commits all queued events in one transaction
(WAL, synchronous=FULL: one `fsync` per group) and then calls `on_durable` on the owner's thread. The driver does not
interpret events: it gets an encoder and a decoder.

How damage is found
-------------------
* A record has its format and a checksum over its revision and content, so a flipped bit and a record at another
  revision are both detected (`record`). Revisions are contiguous, so a missing one is detected.
* SQLite stops silently at the first bad frame of its write-ahead file: a flipped bit there makes the log *short*, not
  wrong. Two checks detect a short log:
  1. The *mark*, a side file with the last revision known to be durable (`mark`): exact after a killed process,
     about a second old after a power failure. A log that ends before its mark has lost acknowledged events.
  2. The write-ahead file itself: synced commits after a bad frame are damage, whatever the mark says (`wal`).

How damage is handled when the log is opened (`inspection`, `repair`)
---------------------------------------------------------------------
* Damage at the very end, after the mark: a copy of the files is saved, the log is truncated after its last intact
  record, and `warn` is called. No event known to be acknowledged is lost.
* Damage at the end, or a missing end, before the mark: acknowledged events are lost, so opening fails with E203. The
  hint removes the mark, by which a person accepts the loss.
* Intact records after damaged ones, or no intact record at all: opening fails with E203. The inspection only reads, so
  nothing has been changed by then.
* A record, a log format or an event type that this version does not know: opening fails with E206; none is skipped.

Where to begin: `store` (the `Store` port), then `writer` (its SQL). `reader` opens a log read-only. Both are a `log`, a
verified one. `tables` defines the file's content, and `faults` has the messages of all errors. `drivers/grouped` has
the group commit, and `drivers/verified` the verification of records.
"""

from poise.drivers.sqlite.reader import LogReader
from poise.drivers.sqlite.store import SqliteStore

__all__ = ["LogReader", "SqliteStore"]

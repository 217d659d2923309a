"""The durable log on SQLite: one writer thread, group commit, and a checksum in every record.

`append` hands encoded events to a writer thread and returns; the thread commits all that has queued up in one
transaction (WAL, synchronous=FULL: one `fsync` per group) and then says `on_durable` on the owner's thread. The driver
never looks into an event: it is given an encoder and a decoder.

How damage is found
-------------------
* A record carries its format and a checksum that starts from its revision, so a flipped bit and a record that moved to
  another revision are both found (`record`). Revisions are contiguous, so a lost one is found.
* SQLite stops silently at the first bad frame of its write-ahead file: a flipped bit there makes the log *short*, not
  wrong. Two things make a short log visible:
  1. The *mark*, a side file that says "at least this revision was durable" (`mark`): exact after a killed process,
     about a second old after a power cut. A log that ends before its mark has lost acknowledged events.
  2. The write-ahead file itself: synced commits behind a bad frame are damage, whatever the mark says (`wal`).

What is done about it, when the log is opened (`inspection`, `repair`)
----------------------------------------------------------------------
* Damage at the very end, beyond the mark: a copy of the files is set aside, the log is cut after its last whole record,
  and `warn` says so. Nothing known to be acknowledged is lost by that.
* Damage at the end, or an end, before the mark: acknowledged events are lost, so this is refused with E203. The hint
  removes the mark, and that is how a person accepts the loss.
* Whole records behind damaged ones, or no whole record at all: refused with E203. The inspection only reads, so nothing
  has been changed by then.
* A record, a log format or an event type that this version does not know is refused with E206, never skipped.

Where to begin: `store` (the `Store` port), then `writer` (its SQL). `reader` opens a log without touching it. Both
are a `log`, a verified one. `tables` is what lies in the file, and `faults` has the words of every refusal. How events
are queued and committed in groups is in `drivers/grouped`, how records are verified in `drivers/verified`.
"""

from poise.drivers.sqlite.reader import LogReader
from poise.drivers.sqlite.store import SqliteStore

__all__ = ["LogReader", "SqliteStore"]

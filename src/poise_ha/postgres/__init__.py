"""The durable log in PostgreSQL, and the lease for leader election.

Tables in the schema `poise` of a database: `log`, `checkpoint` and `about`, as in SQLite's file, and `leadership`, one
row: the term, the leader, and the time of the last renewal.

* A commit and the check of its term are one statement, and a new leader waits for statements under way. A very large
  commit takes several statements, in order: losing the lead between two of them equals losing it between commits.
* Only the database's clock judges the lease. A renewal time in the future means that the clock was set back, and counts
  as expired.

`led` has the code that all such stores share. Where to begin: `store` (the SQL of the log), then `lease`. `link` is the
connection, `tables` has the schema.
"""

from poise.drivers.led.kinds import Kind
from poise_ha.postgres.lease import PostgresLease
from poise_ha.postgres.store import PostgresLog, PostgresWriter

STORE = Kind(PostgresLog, PostgresWriter, PostgresLease)
"""The entry point of this store."""

__all__ = ["STORE", "PostgresLease", "PostgresLog", "PostgresWriter"]

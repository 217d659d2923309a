"""The durable log in PostgreSQL, and the lease by which one control plane leads.

What lies in the schema `poise` of a database: `log`, `checkpoint` and `about`, as in SQLite's file, and `leadership`,
one row: the term, who leads, and when that was last renewed.

* Commit and check of the term are one statement, and who takes the lead waits for those under way. What is very large
  takes several, in order: to lose the lead between two is as losing it between commits.
* The lease is judged by the database's clock alone. One that was renewed in the future has met a clock that was set
  back, and counts no more than one that has run out.

What is the same for every such store is in `led`. Where to begin: `store` (the SQL of the log), then `lease`. `link` is
the connection, `tables` what lies in the schema.
"""

from poise.drivers.led.kinds import Kind
from poise_ha.postgres.lease import PostgresLease
from poise_ha.postgres.store import PostgresLog, PostgresWriter

STORE = Kind(PostgresLog, PostgresWriter, PostgresLease)
"""Its entry point."""

__all__ = ["STORE", "PostgresLease", "PostgresLog", "PostgresWriter"]

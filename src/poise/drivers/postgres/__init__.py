"""The durable log in PostgreSQL, where several control planes find it, and the lease by which one of them leads.

What lies in the schema `poise` of a database: `log`, `checkpoint` and `about`, as in SQLite's file, and `leadership`,
one row: the term, who leads, and when that was last renewed.

Why there is never a second leader
----------------------------------
* The *term* fences: it is one higher whenever somebody takes the lead, and a commit goes through only while the row
  still has the term of whoever writes. Commit and check are one statement, and who takes the lead waits for those
  under way: what is in the log then is all that its predecessors wrote, for ever.
* The *lease* only says when another may take the lead, and is judged by the database's clock alone. One that was
  renewed in the future has met a clock that was set back, and counts no more than one that has run out. A clock that
  jumps may cost a change of leader; it never makes two.
* A leader counts its own lease by a clock of its own, from before it asked for it, and ends itself a fifth before the
  database could give it to another: until then it may answer what needs no commit.
* A home that holds its own lock may take the lease of that home at once: whoever had it is dead.

The database away
-----------------
Commits wait and are tried again: either the rows are there already, or they go in. The lease runs out meanwhile if that
takes long; then the leader ends, and whoever reaches the database first takes the lead.

Where to begin: `store` (the `Store` port and the SQL of the log), then `lease`. `link` is the connection, whose loop
has a thread of its own, so that the owner can ask and wait; `tables` is what lies in the schema.
"""

from poise.drivers.postgres.lease import Lease, Led
from poise.drivers.postgres.store import PostgresLog, PostgresStore

__all__ = ["Lease", "Led", "PostgresLog", "PostgresStore"]

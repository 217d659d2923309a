"""A log shared by several control planes, of which one leads and writes. This package is independent of the database.

Why there is never a second leader
----------------------------------
* The *term* fences: it increases by one with each new leader, and a commit succeeds only while the store has the term
  of the writer. The store itself checks it as a part of the commit: once a new leader has taken over, its
  predecessors can never add to the log again.
* The *lease* only determines when another control plane may take over. `postgres` and `etcd` document how it is
  judged; a clock that jumps may at worst cause a change of leader, never two leaders.
* A leader times its own lease by its own clock, from before the request, and stops a fifth before another control
  plane could get it: until then it may answer requests that need no commit.
* A home that holds its own lock may take over the lease of that home at once: its holder is dead.

Unreachable store
-----------------
Commits wait and are retried: either the rows are there already, or they are added. If that takes long, the lease
expires; then the leader ends, and the first control plane to reach the store takes over.

Where to begin: `store` (the `Store` port on a log and a writer), then `lease`. `link` connects to a store: its library
uses asyncio, on a loop in its own thread, so that the owner can make blocking calls. `kinds` finds the driver for a
URL.
"""

from poise.drivers.led.kinds import check_store, lease_at, log_at, store_at
from poise.drivers.led.lease import Lease, Led
from poise.drivers.led.store import LedStore

__all__ = ["Lease", "Led", "LedStore", "check_store", "lease_at", "log_at", "store_at"]

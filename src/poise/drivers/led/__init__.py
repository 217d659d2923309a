"""A log that several control planes reach, of which one leads and writes: what is the same whatever keeps it.

Why there is never a second leader
----------------------------------
* The *term* fences: it is one higher whenever somebody takes the lead, and a commit goes through only while the store
  still has the term of whoever writes. The store itself checks it, as a part of the commit: what is in the log after
  somebody took the lead is all that its predecessors wrote, for ever.
* The *lease* only says when another may take the lead. How it is judged is told where that is done, in `postgres` and
  in `etcd`; a clock that jumps may at worst cost a change of leader, it never makes two.
* A leader counts its own lease by a clock of its own, from before it asked for it, and ends itself a fifth before
  anybody could be given it: until then it may answer what needs no commit.
* A home that holds its own lock may take the lease of that home at once: whoever had it is dead.

The store away
--------------
Commits wait and are tried again: either the rows are there already, or they go in. The lease runs out meanwhile if that
takes long; then the leader ends, and whoever reaches the store first takes the lead.

Where to begin: `store` (the `Store` port on a log and a writer), then `lease`. `link` is how a store is asked: its
library speaks asyncio, on a loop that has a thread of its own, so that the owner can ask and wait. `kinds` finds what
belongs to a URL.
"""

from poise.drivers.led.kinds import check_store, lease_at, log_at, store_at
from poise.drivers.led.lease import Lease, Led
from poise.drivers.led.store import LedStore

__all__ = ["Lease", "Led", "LedStore", "check_store", "lease_at", "log_at", "store_at"]

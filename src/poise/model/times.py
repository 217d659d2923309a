"""The one table of times."""

import msgspec

from poise.units import MINUTE, SECOND


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The one table of times, in nanoseconds.

    A node that holds work says a word each `heartbeat`; one that has held none for `idle_after` says one more and more
    rarely, down to one each `heartbeat_idle`. How busy it is it looks at each `sample`, and more and more rarely while
    nothing changes, down to once each `sample_calm`. When a word is `suspect` late the node is suspect. Exclusive work
    runs for a `lease` from the last word of its node that was answered. A node that is lost and missed by nobody is
    forgotten after `forget`. Where several control planes share a store, another leads when the lease of `leadership`
    was not renewed.

    While most of the fleet is silent no node is given up, for `outage_hold` at most, nor for as long after that as a
    silent node is given anyway.
    """

    heartbeat: int = 1 * SECOND
    heartbeat_idle: int = 10 * SECOND
    idle_after: int = 10 * SECOND
    suspect: int = 1 * SECOND
    lease: int = 10 * SECOND
    dead_local: int = 3 * SECOND
    dead_remote: int = 10 * SECOND
    outage_hold: int = 60 * SECOND
    forget: int = 60 * MINUTE
    reprobe: int = 5 * SECOND
    sample: int = 1 * SECOND
    sample_calm: int = 5 * SECOND
    idle_exit: int = 3 * SECOND
    leadership: int = 3 * SECOND
    decide: int = 1 * SECOND
    policy_start: int = 10 * SECOND
    policy_rest: int = 60 * SECOND

"""The single table of intervals and timeouts."""

import msgspec

from poise.units import MINUTE, SECOND


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The single table of intervals and timeouts, in nanoseconds.

    A node that holds work sends a heartbeat each `heartbeat`; after `idle_after` without work it sends them more and
    more rarely, down to one each `heartbeat_idle`. It samples its load each `sample`, and more and more rarely while
    nothing changes, down to once each `sample_calm`. When a heartbeat is `suspect` late the node is suspect. Exclusive
    work runs for a `lease` from its node's last acknowledged message. A lost node that holds no work is forgotten after
    `forget`. If several control planes share a store, another one takes over when the lease of `leadership` was not
    renewed.

    While most of the fleet is silent no node is declared lost, for at most `outage_hold`, nor after that before the
    usual timeout of a silent node.
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

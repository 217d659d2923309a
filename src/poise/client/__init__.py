"""The client of a control plane: one connection, blocking calls, errors as exceptions.

It survives restarts of the control plane. Every call is safe to repeat (a submission carries a key), so after a lost
connection it retries for `patience` seconds, or until nobody is left to restart the control plane; then it raises
`Unreachable`. With several control planes it tries each in turn until it finds the leader.
"""

from poise.client.client import Client
from poise.client.link import current_home, failure_of
from poise.client.submitting import Receipt, deadlines_in, new_key, with_context

__all__ = ["Client", "Receipt", "current_home", "deadlines_in", "failure_of", "new_key", "with_context"]

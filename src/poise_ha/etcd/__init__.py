"""The durable log in etcd, and the lease for leader election; through etcd's JSON gateway, without gRPC.

Keys below the prefix (`poise` unless the URL names another):

    about/format, about/written_by      as in every store
    lead/term                           the term, incremented whenever the lease is taken
    lead/who                            the holder
    lead/renewed                        written whenever the lease is renewed; absent once it was released
    first, last                         first and last revision of the log
    log/LAST                            records of one commit, or of a part of it, by the last one's revision
    checkpoint/REVISION                 its state and checksum
    pieces/KEY/NUMBER                   pieces of a value that is too large for one request; KEY has their number

* A commit is a transaction: it compares `lead/term` and `last`, and puts records and the new `last`. etcd orders all
  transactions, so a new leader finds everything that its predecessors wrote. A commit of many records is several such
  transactions, in order: losing the lead between two of them equals losing it between commits.
* Each candidate judges the lease itself: when `lead/renewed` was not written for the duration of the lease, measured by
  the candidate's own monotonic clock from when it saw the value, it takes the lease by a transaction that compares that
  value. Renewing is an ordinary write, which only the term's holder can make. So no other machine's clock matters, not
  even etcd's. etcd's own leases would be renewed by its leader alone, without a majority (etcd issue #15247).
* Reads are linearizable, which is etcd's default.

`led` has the code that all such stores share. Where to begin: `store`, then `lease`. `link` tries the endpoints in
turn, `words` defines the requests and answers of the gateway.
"""

from poise.drivers.led.kinds import Kind
from poise_ha.etcd.lease import EtcdLease
from poise_ha.etcd.store import EtcdLog, EtcdWriter

STORE = Kind(EtcdLog, EtcdWriter, EtcdLease)
"""The entry point of this store."""

__all__ = ["STORE", "EtcdLease", "EtcdLog", "EtcdWriter"]

"""The durable log in etcd, and the lease by which one control plane leads; through its JSON gateway, without gRPC.

What lies below the prefix (`poise` unless the URL names another):

    about/format, about/written_by      as everywhere
    lead/term                           the term, one higher whenever somebody takes the lead
    lead/who                            who has it
    lead/renewed                        written whenever the lease is renewed, not there when it was released
    first, last                         the revisions that the log begins and ends with
    log/LAST                            records of one commit, or of a part of it, by the last one's revision
    checkpoint/REVISION                 its state and checksum
    pieces/KEY/NUMBER                   of what is too large for one request; KEY says then how many there are

* A commit is a transaction: it compares `lead/term` and `last`, and puts records and the new `last`. etcd orders all
  transactions, so what another leader finds there after it took the lead is all that its predecessors wrote. One commit
  of many records is several such transactions, in order: to lose the lead between two is as losing it between commits.
* The lease is judged by whoever wants it: when `lead/renewed` was not written for as long as the lease lasts, counted
  by a clock of its own that nobody sets and from after it was seen, it is taken, by a transaction that compares what
  was seen. Renewing is a write like any other, which only the term's holder can make. So no clock of another machine
  counts, not even etcd's. Its own leases would be renewed by its leader alone, without a majority (#15247 there).
* Reads are linearizable, as they are in etcd unless one asks for others.

What is the same for every such store is in `led`. Where to begin: `store`, then `lease`. `link` asks the endpoints in
turn, `words` are the requests and answers of the gateway.
"""

from poise.drivers.led.kinds import Kind
from poise_ha.etcd.lease import EtcdLease
from poise_ha.etcd.store import EtcdLog, EtcdWriter

STORE = Kind(EtcdLog, EtcdWriter, EtcdLease)
"""Its entry point."""

__all__ = ["STORE", "EtcdLease", "EtcdLog", "EtcdWriter"]

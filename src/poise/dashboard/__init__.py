"""The web dashboard: a process of its own, which reads the control plane as any client does.

`mirror` keeps what one token may see (`picture`), once for all browsers with that token, at a bounded cost to the
control plane. `feed` gives it to browsers as a stream of changes. `data` answers what a page asks for beside that.
`sessions` says who may look, `app` is all of it over HTTP, and `serve` runs it.
"""

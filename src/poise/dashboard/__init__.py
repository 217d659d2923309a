"""The web dashboard: a separate process that reads the control plane as any client does.

`mirror` keeps the state that one token may see (`picture`), once for all browsers with that token, at a limited cost to
the control plane. `feed` streams its changes to browsers. `data` answers further requests of a page. `sessions`
controls access, `app` serves all of it over HTTP, and `serve` runs it.
"""

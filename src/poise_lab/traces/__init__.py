"""Traces: what ran elsewhere, read into a `Workload`; and workloads that are drawn from a seed.

One module a format, each with a `read(path, options)`. `formats` knows them all and finds out which one a file is.
"""

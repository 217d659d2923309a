"""Traces: read third-party traces into a `Workload`, and generate workloads from a seed.

There is one module per format, with a function `read(path, options)`. `formats` lists them all and detects the format
of a file.
"""

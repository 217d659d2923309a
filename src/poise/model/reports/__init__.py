"""Reports on jobs, nodes and the control plane, as records. The command line and the API only render them.

Times of day are seconds since 1970 (0: not yet), durations are nanoseconds.
"""

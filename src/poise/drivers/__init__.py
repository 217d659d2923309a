"""Implementations of the ports: clock, processes, devices, storage. Each module connects to one external resource."""

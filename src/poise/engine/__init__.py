"""The event loop around the machines, and simulated ports: virtual time, faults from a seed. No input or output."""

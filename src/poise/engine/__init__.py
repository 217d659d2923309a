"""The loop around the machines, and doors that are simulated: virtual time, faults from a seed. No input or output."""

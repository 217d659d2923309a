"""Simulation, comparison, rehearsal and reports of runs."""

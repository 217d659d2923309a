"""Poise: an open scheduler for mixed fleets of AI accelerators."""

__version__ = "0.1.0"

"""Policies: pure functions from a view to a verdict. Same view, same verdict, on any machine, on any day."""

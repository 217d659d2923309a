"""Runs, seen from outside: reports of what happened."""

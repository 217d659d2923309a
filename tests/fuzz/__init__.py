"""Mutated input of every kind, for the code that reads what others send: docs/explanation/what-is-fuzzed.md."""

"""The commands that simulate, compare, rehearse and report."""

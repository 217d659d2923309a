"""Commands that simulate, compare, rehearse and report."""

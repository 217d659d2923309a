"""The command line: flags, exit codes, rendering. No logic."""

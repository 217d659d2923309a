"""The command line: flags, exit codes and output. No business logic."""

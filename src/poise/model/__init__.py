"""What is known: frozen, typed, validated, serialisable records. No I/O, no clock, no randomness."""

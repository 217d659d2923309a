"""Records: frozen, typed, validated, serialisable. No I/O, no clock, no randomness."""

"""The commands `poise serve` and `poise services`."""

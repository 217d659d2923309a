"""Former name of `poise_serve`."""

"""Former name of `poise_lab.demo`."""

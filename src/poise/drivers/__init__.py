"""Doors made real: clock, processes, devices, storage. Each module implements a port for one piece of the world."""

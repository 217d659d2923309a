"""Simulated parts that only the lab needs: services, and happenings of a scenario."""

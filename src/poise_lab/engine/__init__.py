"""Simulated parts that only the lab needs: services, and the external events of a scenario."""

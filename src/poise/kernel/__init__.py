"""Pure state machines of the control plane and the agents. They take times and messages, and return events and
effects.
"""

"""Learned policies: an environment for reinforcement learning over the twin, and training."""

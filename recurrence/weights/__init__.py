"""Converts weights: loops to unshared layers and back, and between the key names of implementations."""

"""Choosing the algorithm by cost."""

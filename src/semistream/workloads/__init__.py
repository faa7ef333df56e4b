"""Streams and masters that are made by chance, the same each time: what the planner measures with."""

"""Streams and masters for tests, demos and benchmarks."""

"""Workloads as Spark data sources."""

"""Benchmarks: one run a fresh process, arms in turn, results compared before times are.

`cells` says what one run is, `data` prepares what it reads, `arms_core` and `arms_spark` are what can be run,
`run_once` is the process, `suites` the grid, `results` the file of results, `targets` and `report` what is made of it.
"""

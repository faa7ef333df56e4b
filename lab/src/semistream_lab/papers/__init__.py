"""The papers' experiments: every figure as data, run by `semistream lab run`, drawn by `semistream lab report`.

A suite a module. `figures` says what a figure is, `claims` what a paper states and whether we see it, `arms` runs one
cell, `page` makes the report.
"""

from semistream_lab.papers import meshjoin, moij, pcsrj, sscj, sweep, tuned_xhybrid
from semistream_lab.papers.figures import Suite

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE for module in (meshjoin, sscj, moij, pcsrj, tuned_xhybrid, sweep)
}

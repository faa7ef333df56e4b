"""What the laboratory adds to the command line (the entry point of the group `semistream.commands`)."""

from __future__ import annotations

from semistream.commands.command_line import Commands
from semistream_lab import calibrate, generate, peers_bench, pipeline_bench, plan_bench, profile_bench, tune
from semistream_lab.commands import bench
from semistream_lab.demo import command as demo
from semistream_lab.papers_commands import lab

app = Commands()
for group in (demo.app, calibrate.app, tune.app, generate.app):
    app.add_typer(group)
for command in (pipeline_bench.pipeline, peers_bench.peers, plan_bench.plan, profile_bench.profile):
    bench.command()(command)
app.add_typer(bench, name="bench")
app.add_typer(lab, name="lab")

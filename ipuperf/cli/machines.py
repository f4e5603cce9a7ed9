"""``ipuperf machines``: list the machines, or describe one of them."""

from __future__ import annotations

import click

from ipuperf.cli.parameters import MACHINE_OR_FILE
from ipuperf.cli.terminal import echo


@click.command("machines")
@click.argument("name", required=False, metavar="[NAME|FILE.toml]", type=MACHINE_OR_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def machines(name: str | None, as_json: bool) -> None:
    """List the machines, or describe one.

    Without an argument: the presets, one per line, with IPUs, chip and memory. With the name of a preset or a TOML
    file of your own: chip, memory, links, topology, and every figure with its unit, kind and source.
    """
    import json

    from ipuperf.machine import list_machines, load_machine
    from ipuperf.machine.describe import as_dict, describe, summary

    is_single = name is not None
    machine_list = [
        (machine_name, load_machine(machine_name)) for machine_name in (list_machines() if name is None else [name])
    ]
    if as_json:
        dicts = [as_dict(machine) for _, machine in machine_list]
        echo(json.dumps(dicts[0] if is_single else dicts, indent=2))
    elif is_single:
        echo(describe(machine_list[0][1]), nl=False)
    else:
        echo(summary(machine_list))

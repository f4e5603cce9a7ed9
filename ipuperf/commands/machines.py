"""``ipuperf machines``: which machines there are, and everything about one of them."""

from __future__ import annotations

import click

from ipuperf.commands.terminal import echo


@click.command("machines")
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def machines(name: str | None, as_json: bool) -> None:
    """List the machines, or describe one.

    Without an argument: the presets, one per line, with IPUs, chip and memory. With the name of a preset or a TOML
    file of your own: chip, memory, links, topology, and every figure with its unit, kind and source.
    """
    import json

    from ipuperf.machine import list_machines, load_machine
    from ipuperf.machine.describe import as_dict, describe, summary

    one = name is not None
    found = [(each, load_machine(each)) for each in (list_machines() if name is None else [name])]
    if as_json:
        dicts = [as_dict(machine) for _, machine in found]
        echo(json.dumps(dicts[0] if one else dicts, indent=2))
    elif one:
        echo(describe(found[0][1]), nl=False)
    else:
        echo(summary(found))

"""``ipuperf machines``: which machines there are, and everything about one of them."""

from __future__ import annotations

import click


@click.command("machines")
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def machines(name: str | None, as_json: bool) -> None:
    """List the machines, or describe one.

    Without an argument: the presets, one per line, with IPUs, chip and memory. With the name of a preset or a TOML
    file of your own: chip, memory, links, topology, and every figure with its unit, kind and source.
    """
    import json

    from ipuperf.machine import MachineError, list_machines, load_machine
    from ipuperf.machine.describe import as_dict, describe, summary

    try:
        found = [(each, load_machine(each)) for each in ([name] if name else list_machines())]
    except MachineError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        dicts = [as_dict(machine) for _, machine in found]
        click.echo(json.dumps(dicts[0] if name else dicts, indent=2))
    elif name:
        click.echo(describe(found[0][1]), nl=False)
    else:
        click.echo(summary(found))

"""``ipuperf tune``: find the fastest configuration of a program that fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipuperf.base.cores import cores
from ipuperf.cli.parameters import FACTOR, MACHINE_OR_FILE, FilePath, Name, case_ids, model_names
from ipuperf.cli.terminal import echo

if TYPE_CHECKING:
    from ipuperf.tools.tuning import TuningSpace


@click.command()
@click.argument("program", metavar="MODEL|FILE.toml|SCRIPT", required=False, type=Name(model_names, files=True))
@click.option("--machine", metavar="NAME", type=MACHINE_OR_FILE, help="Preset or machine file.")
@click.option("--global-batch", type=click.IntRange(1), metavar="N", help="Samples of a weight update.")
@click.option(
    "--like", metavar="CASE", type=Name(case_ids), help="Begin with a case of `ipuperf validate` and vary how it runs."
)
@click.option(
    "--set", "fixed", multiple=True, metavar="NAME=VALUE", type=FACTOR, help="A factor with one value (JSON or text)."
)
@click.option("--factor", "factors", multiple=True, metavar="NAME=V,V..", type=FACTOR,
              help="A factor with the values to try (JSON or texts, as pipeline=[0,4,4,4],[1,4,4,3]).")  # fmt: skip
@click.option("--where", "constraints", multiple=True, metavar="EXPRESSION", help="Choose only what satisfies this.")
@click.option(
    "--trials", type=click.IntRange(1), help="Configurations to lower at the most.  [default: a tenth of all, 8 to 100]"
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of what is drawn at random (nothing where there are probes).",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes: configurations that are tried at a time.  "
              "[default: one for each core]")  # fmt: skip
@click.option(
    "--out",
    type=FilePath(file_okay=False),
    metavar="DIR",
    help="Folder of the outcomes and the answer.  [default: the program's name and '-tune']",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def tune(
    program: str | None, machine: str | None, global_batch: int | None, like: str | None, fixed: tuple[str, ...],
    factors: tuple[str, ...], constraints: tuple[str, ...], trials: int | None, seed: int, jobs: int | None,
    out: Path | None, as_json: bool, args: tuple[str, ...],
) -> None:  # fmt: skip
    """Find the split, schedule, micro-batch, accumulation, replicas, recomputation, offloading, sharding and memory
    proportions with which a MODEL of ipuperf.models, a SCRIPT (its ARGS behind '--', with '{NAME}' for factors) or the
    configurations of a sweep's FILE.toml take least time for a global batch on a machine, and fit.

    Small programs, the probes, say what each layer takes. Configurations that cannot be faster or cannot fit are ruled
    out by bounds; of the others those are tried first that are expected to gain most. What is in the folder already is
    not made again.
    """
    from ipuperf.tools.tuning import text_of
    from ipuperf.tools.tuning import tune as search

    factor_values = {**dict(_fixed(text) for text in fixed), **dict(_values(text) for text in factors)}
    space, start = _space(program, machine, global_batch, like, factor_values, constraints, args)
    name = like or Path(program or "").stem
    folder = Path(f"{name}-tune") if out is None else out
    answer = search(space, folder, trials=trials, seed=seed, start=start, jobs=jobs or cores())
    if as_json:
        from ipuperf.tools.tuning.files import json_of

        echo(json_of(answer), nl=False)
        return
    echo(text_of(answer, space.names))
    echo(f"settings: {folder / 'answer'}")


def _space(
    program: str | None, machine: str | None, global_batch: int | None, like: str | None,
    factor_values: dict[str, tuple[Any, ...]], constraints: tuple[str, ...], args: tuple[str, ...],
) -> tuple[TuningSpace, dict[str, Any] | None]:  # fmt: skip
    """Return the space to search, and the configuration to begin with."""
    from ipuperf.tools.tuning import case_space, file_space, model_space, script_space

    if (program is None) == (like is None):
        raise click.UsageError("either MODEL, FILE.toml or SCRIPT, or --like CASE")
    if like is not None:
        return case_space(like, machine, global_batch, factor_values, constraints)
    assert program is not None
    if global_batch is None:
        raise click.UsageError("--global-batch is missing: samples of a weight update")
    path = Path(program)
    if path.suffix == ".toml":
        if args or factor_values:
            raise click.UsageError("--set, --factor and ARGS go with a model or script; a TOML file says them itself")
        return file_space(path, machine, global_batch, constraints), None
    if machine is None:
        raise click.UsageError("--machine is missing: a preset (`ipuperf machines` lists them) or a machine file")
    if path.suffix == ".py":
        return script_space(path, args, machine, global_batch, factor_values, constraints), None
    if args:
        raise click.UsageError("ARGS go with a script")
    return model_space(program, machine, global_batch, factor_values, constraints, str(Path.cwd())), None


def _split(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise click.UsageError(f"{option} {text!r}, allowed: NAME=VALUE")
    return name.strip(), value


def _fixed(text: str) -> tuple[str, tuple[Any, ...]]:
    name, value = _split(text, "--set")
    return name, (_tuples(_json(value)),)


def _values(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return name and values: JSON values separated by commas (lists are values), or texts."""
    name, value_text = _split(text, "--factor")
    try:
        # As one JSON array: commas within a list of layers then separate nothing.
        parsed = json.loads(f"[{value_text}]")
    except ValueError:
        return name, tuple(_json(element) for element in value_text.split(","))
    return name, tuple(_tuples(element) for element in parsed)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _tuples(value: Any) -> Any:
    return tuple(_tuples(element) for element in value) if isinstance(value, list) else value

"""Many random programs against their oracles, see ``docs/random-programs.md``.

    python tests/fuzz/run.py popxl --programs 10000
    python tests/fuzz/run.py replay fuzz-failures/popxl-4711.json

Program ``n`` of a family depends on ``n`` alone. A program that fails is made smaller, printed and kept.
"""

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

# The products are small: threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent))
from fuzzing.families import FAMILIES, family
from fuzzing.outcome import guarded, load, save, shrunk


@click.group()
def main() -> None:
    """Random programs against independent oracles."""


def _explore(name: str, first: int, count: int, trace_every: int, folder: Path) -> int:
    """Check programs ``first`` to ``first + count``; the number of those that failed."""
    module, started = family(name), time.process_time()
    failed, refused, ill, compared, size = 0, 0, 0, 0, 0
    for seed in tqdm(range(first, first + count), unit="program", mininterval=2):
        program = module.draw(random.Random(seed))
        trace = trace_every > 0 and seed % trace_every == 0
        outcome = guarded(module, program, trace=trace)
        compared, size, refused = compared + outcome.compared, size + program.size(), refused + bool(outcome.refused)
        if outcome.ill_conditioned:
            ill += 1
            tqdm.write(f"{name}, seed {seed}, is ill-conditioned: {outcome.ill_conditioned}")
        if outcome.problems:
            failed += 1
            _tell(name, seed, module, program, outcome, trace, folder)
    each = 1000 * (time.process_time() - started) / max(1, count)
    click.echo(
        f"{name}: {count} programs of {size / max(1, count):.0f} parts, {compared:,} numbers compared, "
        f"{failed} failed, {refused} refused or skipped, {ill} ill-conditioned, {each:.0f} ms CPU per program"
    )
    return failed


def _tell(name: str, seed: int, module: Any, program: Any, outcome: Any, trace: bool, folder: Path) -> None:
    """Print the smallest failing program and keep it."""
    smaller = shrunk(module, program, outcome, trace=trace)
    path = folder / f"{name}-{seed}.json"
    found = guarded(module, smaller, trace=trace)
    save(path, name, smaller, found)
    tqdm.write(f"\n{name}, seed {seed}, kept as {path}:\n{smaller}\n" + "\n".join(found.problems[:5]))


def _command(name: str) -> None:
    @main.command(name)
    @click.option("--programs", default=1000, show_default=True, help="How many.")
    @click.option("--first", default=0, show_default=True, help="Seed of the first.")
    @click.option("--trace-every", default=10, show_default=True, help="Check the trace of every n-th; 0: of none.")
    @click.option("--failures", default="fuzz-failures", type=click.Path(path_type=Path), help="Folder of failures.")
    def command(programs: int, first: int, trace_every: int, failures: Path) -> None:
        sys.exit(1 if _explore(name, first, programs, trace_every, failures) else 0)

    command.help = f"Random programs of the family {name}."


for _family in FAMILIES:
    _command(_family)


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(files: tuple[Path, ...]) -> None:
    """Check kept programs again."""
    failed = 0
    for path in files:
        name, text = load(path)
        module = family(name)
        outcome = guarded(module, module.Program.from_json(text), trace=True)
        failed += bool(outcome.problems)
        ill = outcome.ill_conditioned and f"ill-conditioned: {outcome.ill_conditioned}"
        click.echo(f"{path}: {'; '.join(outcome.problems) or outcome.refused or ill or 'no difference'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

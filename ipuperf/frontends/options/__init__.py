"""The catalogue of options: what each argument and option of every front end does here, and why.

``catalogue.csv`` has the rows. A row gives the option's names in the vocabulary of each front end, the values that it
accepts, its default, its effect, the values that ask for what happens anyway, and the reason. Front ends read their
rows through :class:`Effects`; ``docs/reference/arguments.md`` and ``tests/options`` come from the same rows.
"""

from .catalogue import (
    ADDONS,
    APPLIED,
    NO_DIFFERENCE,
    NO_EFFECT,
    POPART,
    POPXL,
    TENSORFLOW,
    UNSUPPORTED,
    VOCABULARIES,
    Effects,
    Member,
    Option,
)

__all__ = [
    "ADDONS",
    "APPLIED",
    "NO_DIFFERENCE",
    "NO_EFFECT",
    "POPART",
    "POPXL",
    "TENSORFLOW",
    "UNSUPPORTED",
    "VOCABULARIES",
    "Effects",
    "Member",
    "Option",
]

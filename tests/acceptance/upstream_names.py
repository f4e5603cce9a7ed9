"""Every public name of the vendor's PopXL and addons (3.4), by module.

Sources: popart: python/popxl/python_files/__init__.py and those of ops, transforms; popxl-addons: popxl_addons.
"""

import csv
from pathlib import Path

with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
    UPSTREAM = {row["module"]: row["names"].split() for row in csv.DictReader(file)}

NAMES = [(module, name) for module, names in UPSTREAM.items() for name in names]
POPXL_NAMES = [(module, name) for module, name in NAMES if module.partition(".")[0] == "popxl"]
ADDONS_NAMES = [(module, name) for module, name in NAMES if module.partition(".")[0] == "popxl_addons"]

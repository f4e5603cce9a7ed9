"""Room ``popxl``: see docs/design.md."""

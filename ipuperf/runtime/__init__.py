"""Room ``runtime``: see docs/design.md."""

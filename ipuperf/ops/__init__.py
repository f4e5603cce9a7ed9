"""Room ``ops``: see docs/design.md."""

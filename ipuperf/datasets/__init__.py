"""Room ``datasets``: see docs/design.md."""

"""Room ``numerics``: see docs/design.md."""

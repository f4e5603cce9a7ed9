"""Room ``simulation``: see docs/design.md."""

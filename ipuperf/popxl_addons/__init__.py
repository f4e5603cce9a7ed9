"""Room ``popxl_addons``: see docs/design.md."""

"""Models written as a user of the front ends would write them; installed as ``ipuperf.models``.

They import ``popxl`` and ``popxl_addons`` under their upstream names, so call ``ipuperf.install()`` first.
"""

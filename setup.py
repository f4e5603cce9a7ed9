"""Where the packages are; everything else stands in pyproject.toml.

``models/`` and ``scenarios/`` lie at the top of the checkout, where users look for them, and are installed inside the
package, where ``ipuperf demo`` finds them. Declarative configuration cannot say both "find" and "rename".
"""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages(include=["ipuperf", "ipuperf.*"]), "ipuperf.models", "ipuperf.scenarios"],
    package_dir={"ipuperf.models": "models", "ipuperf.scenarios": "scenarios"},
)

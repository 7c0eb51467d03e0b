"""Every folder in erjepa/ is a package. The rest is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup

# What an earlier build left there would be packaged, too.
shutil.rmtree(Path(__file__).parent / "build" / "lib", ignore_errors=True)

setup(
    packages=[
        *("erjepa_recipe", "erjepa_eval"),
        *("erjepa_configs", "erjepa_configs.experiments"),
        *find_namespace_packages(
            include=["erjepa", "erjepa.*"], exclude=["*.__pycache__"]
        ),
    ]
)

"""Every folder in erjepa/ is a package. The rest is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *("erjepa_recipe", "erjepa_eval"),
        *("erjepa_configs", "erjepa_configs.experiments"),
        *find_namespace_packages(
            include=["erjepa", "erjepa.*"], exclude=["*.__pycache__"]
        ),
    ]
)

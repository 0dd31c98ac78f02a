"""Packaging of mmshared: an MMEngine/MMDetection plugin."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def requirements(name: str) -> list:
    """The requirement lines of ``requirements/<name>.txt``, comments left out."""
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text(encoding='utf-8').splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith('#')]


setup(
    name='mmshared',
    version='0.1.0',
    description='Shared-memory data loading for MMDetection: annotations parsed once per node, mapped by every process',
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.9',
    packages=find_packages(include=['mmshared', 'mmshared.*']),
    entry_points={'console_scripts': ['mmshared = mmshared.__main__:start']},
    # No stack in here: pip would put OpenMMLab's packages over a fork's, or the other way round.
    install_requires=requirements('runtime'),
    extras_require={
        'tests': requirements('tests'),
        'mm': requirements('mminstall'),
        'onedl': requirements('mminstall-onedl'),
    },
)

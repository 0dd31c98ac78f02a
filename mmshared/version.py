"""The version of mmshared."""

__version__ = '0.1.0'

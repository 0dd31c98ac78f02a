"""Formats of archives, each in a file."""

"""Helpers of the command-line tools."""

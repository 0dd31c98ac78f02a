"""Whole configs from stock types to shared and lean ones, and back."""

from .conversion import convert, convert_back
from .report import Change, Report

__all__ = ['Change', 'Report', 'convert', 'convert_back']

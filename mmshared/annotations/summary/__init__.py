"""What an annotation file holds, and what in it will bite: from the columns of its store."""

from .oddities import Level, Oddity, find_oddities
from .overview import Overview, overview

__all__ = ['Level', 'Oddity', 'Overview', 'find_oddities', 'overview']

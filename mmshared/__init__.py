"""mmshared: shared-memory data loading for MMDetection."""
__version__ = '0.1.0'

"""COCO JSON -> memory-mapped columns. Imports numpy and the JSON parsers only: no torch, no mm*."""

"""The ``mmshared`` command. It needs numpy and the JSON parsers only: no torch, no mm*."""

"""Families of checkpoints, one a file: the folder is scanned."""

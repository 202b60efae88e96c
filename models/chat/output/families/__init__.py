"""Families of output formats, one file each, found by scanning this folder."""

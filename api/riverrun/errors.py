"""Every exception that riverrun raises on purpose: the tree of riverrun.graph.errors."""

from riverrun.graph.errors import *  # noqa: F403

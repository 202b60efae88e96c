"""What chat models write, understood: reasoning, text and calls of tools, as the text comes, and
the grammars that make calls valid."""

from .deltas import CallArguments, CallEnd, CallStart, Content, Delta, Place, Reasoning
from .formats import FORMATS, OutputFormat, format_for, formats, register
from .parser import MarkedParser, OutputParser, Think

__all__ = [
    "FORMATS",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "Content",
    "Delta",
    "MarkedParser",
    "OutputFormat",
    "OutputParser",
    "Place",
    "Reasoning",
    "Think",
    "format_for",
    "formats",
    "register",
]

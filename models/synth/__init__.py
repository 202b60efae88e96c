"""Model files of real shapes with random weights: for measuring, where values do not matter."""

from .shapes import SHAPES, Shape, find_shape
from .write import ROUTERS, outline, synthesize

__all__ = ["ROUTERS", "SHAPES", "Shape", "find_shape", "outline", "synthesize"]

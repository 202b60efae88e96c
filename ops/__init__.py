"""The op set, one op or small family a file. Importing this package registers them all."""

from ..graph.op import OPS, scan

scan(__name__, __path__)

# The leaves are nodes but not operations that anybody calls.
__all__ = ["OPS"]

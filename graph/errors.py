"""Every exception that riverrun raises on purpose.

    RiverrunError
    |- GraphError (ValueError)       a graph that means nothing: order, state, names
    |  |- ShapeError                 an input's shape does not fit its op
    |  |- DTypeError                 an input's dtype does not fit its op
    |  `- AttributeValueError        an op attribute is missing, unknown or out of range
    |- Unsupported                   no backend or kernel takes this node, with each one's reason
    |- BackendError (RuntimeError)   a device is missing, or a kernel reported a failure
    |- OutOfMemory (MemoryError)     asked for, and there
    |- ModelError (ValueError)       a model file that cannot be run
    |  |- GgufError                  the container itself is damaged or unsafe
    |  `- TokenizerError             vocabulary or pre-tokenizer data is wrong or unknown
    |- RequestError (ValueError)     a caller's argument: prompt too long, bad sampler value
    |  `- TemplateError              a chat template that fails, or refuses the messages
    |- DownloadError (RuntimeError)  a model that cannot be fetched
    |- ServerError (RuntimeError)    a server that was asked did not answer, or not as it should
    |- DrafterError (RuntimeError)   a drafter raised, or gave something else than drafts
    |- SequenceLost (RuntimeError)   a sequence that an exception left in pieces; clear it
    `- SessionBusy (RuntimeError)    a session used by two callers at once

A message names the op or file, what was expected, what came, and the remedy where one is known.
"""

from __future__ import annotations


class RiverrunError(Exception):
    """Base of all."""


class GraphError(RiverrunError, ValueError):
    """A graph that means nothing."""


class ShapeError(GraphError):
    """An input's shape does not fit its op."""


class DTypeError(GraphError):
    """An input's dtype does not fit its op."""


class AttributeValueError(GraphError):
    """An op attribute is missing, unknown or out of range."""


class Unsupported(RiverrunError):
    """No backend or kernel takes a node."""


class BackendError(RiverrunError, RuntimeError):
    """A device is missing, or a kernel reported a failure."""


class OutOfMemory(RiverrunError, MemoryError):
    """Memory asked for is more than there is."""


class ModelError(RiverrunError, ValueError):
    """A model file that cannot be run."""


class GgufError(ModelError):
    """The GGUF container is damaged, truncated or unsafe to read."""


class TokenizerError(ModelError):
    """Vocabulary or pre-tokenizer data is wrong or unknown."""


class RequestError(RiverrunError, ValueError):
    """A caller's argument is out of range. argument: its name, where it is one that has a name."""

    def __init__(self, message: str = "", argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class TemplateError(RequestError):
    """A chat template is missing, fails, refuses the messages, or takes too much."""


class DownloadError(RiverrunError, RuntimeError):
    """A model cannot be fetched: not there, no access, no connection, or damaged."""


class ServerError(RiverrunError, RuntimeError):
    """A server that was asked over HTTP cannot be reached, refuses, or answers something else."""


class DrafterError(RiverrunError, RuntimeError):
    """A drafter raised something else than this package's errors, or what it gave is no draft."""


class SequenceLost(RiverrunError, RuntimeError):
    """An exception in the middle of a call left a sequence in pieces; `clear` empties it."""


class SessionBusy(RiverrunError, RuntimeError):
    """A session was entered by a second caller."""

"""Chat templates: messages to the text that a model was trained on."""

from .stored import ChatTemplates
from .template import ChatTemplate

__all__ = ["ChatTemplate", "ChatTemplates"]

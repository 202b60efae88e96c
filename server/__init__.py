"""An HTTP service over the engine: the OpenAI, llama-server, Anthropic and Ollama interfaces."""

from typing import TYPE_CHECKING

from ..graph.late import late_names

if TYPE_CHECKING:
    from .app import make_app
    from .options import ServerOptions
    from .serving import serve
    from .store import ModelStore

__all__ = late_names(
    __name__,
    {
        ".app": "make_app",
        ".options": "ServerOptions",
        ".serving": "serve",
        ".store": "ModelStore",
    },
)

"""What a caller may ask of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..graph.errors import RequestError
from ..graph.fields import Check, check_fields, integer, number, one_of, option

LOG_FORMATS = ("text", "json")
_MOST = 2**31 - 1
_SECONDS = number("a number of seconds >= 0", lambda v: v >= 0)


def read_list(texts: list[str]) -> tuple[str, ...]:
    """The values of an option that was given several times."""
    return tuple(texts)


@dataclass(frozen=True)
class ServerOptions:
    """host, port: where it listens, port 0 for a free one; parallel: requests that run at a time,
    of each model; cache_mib: MiB for states along prompts; host_mib: MiB of host memory for texts
    whose pages others have taken; queue: requests that may wait beside
    those; api_keys: the keys of which requests must show one, none for no check; alias: the model's
    name instead of its file's; models: a folder whose GGUF files can be named in requests;
    max_models: how many are loaded at a time; keep_alive: seconds after which one of those that
    nobody uses is unloaded, -1 for never; warm_up: compile what requests will run when a model is
    loaded; timeout: seconds for a whole request, 0 for any; drain: seconds that running requests
    get on shutdown; max_body: MiB of the longest request; slot_save_path: the folder of saved
    slots; allowed_hosts: names that the Host header may have besides the address, allowed_origins:
    pages elsewhere that browsers may send requests from, * for any; log_format: text or json."""

    host: str = option(
        "127.0.0.1",
        "--host",
        metavar="HOST",
        help="Address to listen on; 0.0.0.0: all.",
        check=Check("an address or a name", lambda v: isinstance(v, str) and bool(v.strip())),
    )
    port: int = option(
        8080, "--port", metavar="PORT", help="Port; 0: a free one.", check=integer(0, 65535)
    )
    parallel: int = option(
        4,
        "--parallel",
        metavar="N",
        help="Requests that run at a time.",
        check=integer(1, 1024),
    )
    cache_mib: float | None = option(
        None,
        "--cache-size",
        metavar="MIB",
        help="Memory for recurrent states along prompts, from which later prompts go on.",
        shown="256, or two states of each sequence",
        check=number("a number of MiB >= 0", lambda v: v >= 0),
    )
    host_mib: float | None = option(
        None,
        "--cache-ram",
        metavar="MIB",
        help="Host memory for earlier texts that attention memory has no more room for; 0: none.",
        shown="as much as attention memory and kept states may take, up to 8192",
        check=number("a number of MiB >= 0", lambda v: v >= 0),
    )
    queue: int = option(
        256,
        "--queue",
        metavar="N",
        help="Requests that may wait beside those; further ones are told to come back.",
        check=integer(0, _MOST),
    )
    api_keys: tuple[str, ...] = option(
        (),
        "--api-key",
        metavar="KEY",
        help="A key that requests must show; repeatable. RIVERRUN_API_KEY gives one, too.",
        repeatable=True,
        read=read_list,
    )
    alias: str | None = option(
        None,
        "--alias",
        metavar="NAME",
        help="The model's name in requests and answers.",
        shown="the file's name",
    )
    models: Path | None = option(
        None,
        "--models",
        metavar="DIR",
        help="Folder of GGUF files that requests may name, loaded when they do.",
    )
    max_models: int = option(
        2,
        "--max-models",
        metavar="N",
        help="Models that are loaded at a time, besides MODEL.",
        check=integer(1, 1024),
    )
    keep_alive: float = option(
        300.0,
        "--keep-alive",
        metavar="S",
        help="Seconds after which a model of --models that nobody uses is unloaded; -1: never.",
        check=number("a number of seconds, or -1", lambda v: v >= 0 or v == -1),
    )
    warm_up: bool = option(
        True, "--no-warmup", help="Begin without passes that compile what requests will run."
    )
    timeout: float = option(
        0.0,
        "--timeout",
        metavar="S",
        help="Seconds after which a request is cancelled; 0: never.",
        check=_SECONDS,
    )
    drain: float = option(
        30.0,
        "--drain",
        metavar="S",
        help="Seconds that running requests get to end when the server is told to stop.",
        check=_SECONDS,
    )
    max_body: float = option(
        32.0,
        "--max-body",
        metavar="MIB",
        help="Longest body of a request, in MiB.",
        check=number("a number of MiB in (0, 4096]", lambda v: 0 < v <= 4096),
    )
    slot_save_path: Path | None = option(
        None,
        "--slot-save-path",
        metavar="DIR",
        help="Folder for saved slots; without it none can be saved.",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "--allowed-host",
        metavar="NAME",
        help="A name that the Host header may have besides the address; repeatable, *: any.",
        repeatable=True,
        read=read_list,
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "--cors-origin",
        metavar="ORIGIN",
        help="Pages elsewhere that browsers may send requests from; repeatable, *: any.",
        repeatable=True,
        read=read_list,
    )
    log_format: str = option(
        "text",
        "--log-format",
        metavar="text|json",
        help="Form of the log on standard error.",
        check=one_of(LOG_FORMATS),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        # Without what came, which may be secret.
        if not all(key.strip() for key in self.api_keys):
            raise RequestError("api_keys: expected keys that are not empty", "api_keys")

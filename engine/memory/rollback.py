"""How recurrent state is rolled back: the strategies by name. Which one rollback="auto" takes is in
recurrent_layout.py."""

from __future__ import annotations

from .checkpoint import DeviceCheckpoint, HostCheckpoint
from .kinds import check_rollback
from .recurrent import RecurrentMemory
from .replay import Replay
from .snapshots import Snapshots

STRATEGIES: dict[str, type[RecurrentMemory]] = {
    cls.name: cls for cls in (Replay, Snapshots, HostCheckpoint, DeviceCheckpoint)
}


def strategies(name: str, window: int, on_host: bool) -> list[type[RecurrentMemory]]:
    """The classes to try, best first. window: tokens to forget; 0 needs no strategy.

    "checkpoint" is the kind whose copy lies where the state does: the host's for on_host."""
    check_rollback(name)
    if window == 0:
        return [RecurrentMemory]
    near = HostCheckpoint if on_host else DeviceCheckpoint
    if name == "checkpoint":
        return [near]
    return [Replay, Snapshots, near] if name == "auto" else [STRATEGIES[name]]

"""`riverrun devices`: what models can run on here."""

from __future__ import annotations

import json
from dataclasses import asdict

from .options import Json


def devices(as_json: Json = False) -> None:
    """List the devices of this build and machine, best first."""
    from ..backends import devices as list_devices

    found = list_devices()
    if as_json:
        print(json.dumps({"devices": [asdict(device) for device in found]}))
        return
    width = max(len(device.name) for device in found)
    for device in found:
        print(f"{device.name:{width}}  {device.description}")

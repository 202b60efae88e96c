"""What the CUDA kernels take is what tests/cuda/support.json says, which docs/support.md shows."""

from __future__ import annotations

import json

from cuda_rig import backend, needs_cuda
from paths import ROOT
from riverrun.bench.support import facts
from riverrun.tools.gen_cuda_support import RECORD

pytestmark = needs_cuda


def test_the_record_is_what_the_kernels_say() -> None:
    assert json.loads((ROOT / RECORD).read_text()) == facts(backend()), "make support-cuda"

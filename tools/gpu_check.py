"""Builds riverrun for the card of this machine, checks it there, measures it, and writes one JSON
report: `python tools/gpu_check.py --out report.json`. Runs from a checkout, without a network.

Steps, each with a time limit, a failure never stopping the next one: build (into a folder of its
own), ops (every case of every op, as step and as prefill), rows (bits of rows alone and among
others), tests (tests/cuda), sanitize (compute-sanitizer over the small cases), bench (files given
with --model). Exits with 1 when a step failed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("build", "ops", "rows", "tests", "sanitize", "bench")
SANITIZED = ("memcheck", "racecheck")


class Check:
    """The steps, with the folder that the package is installed in."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.target = options, Path(options.target).resolve()
        # First on the path, so that packages installed beside it are found by pytest, too.
        path = os.pathsep.join(filter(None, (str(self.target), os.environ.get("PYTHONPATH"))))
        # Kernels that are there for the asking are checked like the others.
        self.env = os.environ | {"PYTHONPATH": path, "RIVERRUN_CUDA_CHUNKED": "1"}

    def run(self, *command: str, limit: float = 600, **env: str) -> subprocess.CompletedProcess:
        """A command from the checkout, its output kept. Raises TimeoutExpired."""
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=limit,
        )

    def riverrun(self, *arguments: str, limit: float = 600, **env: str) -> Any:
        """A subcommand of the installed riverrun."""
        return self.run(sys.executable, "-m", "riverrun.tools.main", *arguments, limit=limit, **env)

    def build(self) -> dict[str, Any]:
        """Install with CUDA kernels for this card only."""
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation"]
        command += ["--no-deps", "--no-index", "--upgrade", "--target", str(self.target), "."]
        defines = {"RIVERRUN_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": self.options.arch}
        for name, value in defines.items():
            command += ["-C", f"cmake.define.{name}={value}"]
        return _outcome(self.run(*command))

    def ops(self) -> dict[str, Any]:
        """Cases passed, failed and refused, in both kinds of plan."""
        found = {k: self._cases("--kind", k) for k in ("step", "prefill")}
        return {"ok": all(f["ok"] for f in found.values()), **found}

    def rows(self) -> dict[str, Any]:
        """Rows that keep their bits among others."""
        return self._cases("--rows")

    def _cases(self, *arguments: str) -> dict[str, Any]:
        done = self.riverrun("test-ops", "--backend", "cuda", "--json", *arguments)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            return _outcome(done)
        wrong = [c for c in found["cases"] if c["status"] != "passed"]
        whys = sorted({f"{c['status']} {c['id'].split('[')[0]}: {c['why']}" for c in wrong})
        failed = [f"{c['id']}: {c['why']}" for c in wrong if c["status"] == "failed"]
        return {"ok": not failed, **found["summary"], "failed": failed, "not passed": whys[:60]}

    def tests(self) -> dict[str, Any]:
        """The tests that need a card."""
        return _outcome(
            self.run(sys.executable, "-m", "pytest", "-q", "tests/cuda", "--maxfail=20")
        )

    def sanitize(self) -> dict[str, Any]:
        """compute-sanitizer's tools over the small cases; ops of little work only, because it
        slows kernels down a hundredfold."""
        runner = [sys.executable, "tests/cuda/sanitized.py"]
        found = {}
        for tool in SANITIZED:
            command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *runner]
            done = self.run(*command, limit=self.options.limit)
            found[tool] = _outcome(done, 15)
        return {"ok": all(f["ok"] for f in found.values()), **found}

    def bench(self) -> dict[str, Any]:
        """Decoding, passes and prompts of each model file."""
        found: dict[str, Any] = {"ok": True}
        for model in self.options.model:
            command = ["bench", model, "--device", "cuda", "--json", "-r", "3", "-n", "128"]
            done = self.riverrun(*command, "-p", "1,2,4,8,16,32,512,2048")
            try:
                found[Path(model).name] = json.loads(done.stdout)
            except ValueError:
                found |= {Path(model).name: _outcome(done), "ok": False}
        return found


def _outcome(done: subprocess.CompletedProcess, lines: int = 40) -> dict[str, Any]:
    """What a command came to: ok, and the end of what it said."""
    said = (done.stdout + done.stderr).splitlines()
    return {"ok": done.returncode == 0, "said": said[-lines:]}


def card() -> str:
    """The card's name and driver, as nvidia-smi has them."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError:
        return "no nvidia-smi"


def main() -> int:
    """Run the steps asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", default="gpu_check.json", help="the report")
    parser.add_argument("--steps", default=",".join(STEPS), help="of " + ", ".join(STEPS))
    parser.add_argument("--target", default="build/gpu_check", help="where riverrun is installed")
    parser.add_argument("--arch", default="90", help="CMAKE_CUDA_ARCHITECTURES")
    parser.add_argument("--model", action="append", default=[], help="a GGUF file to measure")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a sanitizer's run")
    options = parser.parse_args()
    check = Check(options)
    report: dict[str, Any] = {"card": card()}
    for name in options.steps.split(","):
        step: Callable[[], dict[str, Any]] = getattr(check, name)
        began = time.perf_counter()
        try:
            found = step()
        except (OSError, subprocess.TimeoutExpired) as error:
            found = {"ok": False, "said": [str(error)[:500]]}
        report[name] = {"seconds": round(time.perf_counter() - began, 1), **found}
        Path(options.out).write_text(json.dumps(report, indent=1))
        print(
            f"{name}: {'ok' if found['ok'] else 'FAILED'}, {report[name]['seconds']} s", flush=True
        )
    return 0 if all(report[n]["ok"] for n in options.steps.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())

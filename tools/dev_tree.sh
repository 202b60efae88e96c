#!/bin/sh
# Makes DIR/riverrun (default .dev): the package as a tree of links, so that `PYTHONPATH=DIR` and
# mypy see the working files under their import names without an install.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
dir=${1:-.dev}
mkdir -p "$dir/riverrun"
for entry in api/riverrun/*; do ln -sfn "$root/$entry" "$dir/riverrun/$(basename "$entry")"; done
for folder in graph ops backends models engine speculative server bench tools; do
  if [ -d "$folder" ]; then ln -sfn "$root/$folder" "$dir/riverrun/$folder"; fi
done

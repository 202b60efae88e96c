#!/bin/sh
# Compiles the processor's kernels for aarch64 and runs the cases of ops with them, emulated by
# qemu, at each level that the emulated processor has: `tools/test_aarch64.sh [OP ...]`. By default
# all ops run at the lowest level and products, which alone differ, at the others. All levels have
# to give the same bits.
#
# QEMU_CPU names a processor, as `QEMU_CPU=neoverse-n1`, which does not multiply matrices.
# Needs Debian's g++-aarch64-linux-gnu and qemu-user-static, `dpkg --add-architecture arm64`, and
# in .venv (or $VENV) a Python of the same version as Debian's.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-$PWD/.venv} all=$PWD/build/aarch64
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do
  command -v "$tool" >/dev/null || {
    echo "$tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2
    exit 1
  }
done

# Python and what it is linked with, as files beside this machine's.
if ! [ -x "$all/root/usr/bin/python$version" ]; then
  mkdir -p "$all/debs" "$all/root"
  (cd "$all/debs" && apt-get download -qq "python$version-minimal:arm64" \
    "libpython$version-minimal:arm64" "libpython$version-stdlib:arm64" libc6:arm64 zlib1g:arm64 \
    libexpat1:arm64 libssl3:arm64 libffi8:arm64 libstdc++6:arm64 libgcc-s1:arm64 \
    libbz2-1.0:arm64 liblzma5:arm64 libuuid1:arm64)
  for package in "$all"/debs/*.deb; do dpkg -x "$package" "$all/root"; done
fi
if ! [ -d "$all/site/tokenizers" ]; then
  "$venv/bin/pip" install -q --target "$all/site" --no-deps --only-binary=:all: \
    --python-version "$version" --implementation cp --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 numpy sentencepiece tokenizers
fi

tools/dev_tree.sh build/aarch64/tree
PATH="$venv/bin:$PATH" cmake -S . -B "$all/kernels" -G Ninja -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DPython_EXECUTABLE="$venv/bin/python" -DPython_INCLUDE_DIR="$("$venv/bin/python" -c \
  'import sysconfig; print(sysconfig.get_path("include"))')" -DPYTHON_MODULE_EXTENSION=.so >/dev/null
PATH="$venv/bin:$PATH" cmake --build "$all/kernels" --target _cpu
ln -sfn "$all/kernels/_cpu.so" "$all/tree/riverrun/"

PYTHONPATH=$all/tree:$all/site:$venv/lib/python$version/site-packages:tests:tests/backends
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1
emulated() {
  qemu-aarch64-static -L "$all/root" "$all/root/usr/bin/python$version" "$@"
}

digest='from test_mul_mat_cpu import digest; print(digest())'
levels=$(emulated -c 'from riverrun.backends.cpu import instruction_sets as f; print(*f())')
bits=
for level in $levels; do
  if [ $# -eq 0 ] && [ "$level" != base ]; then set -- mul_mat mul_mat_id; fi
  RIVERRUN_ISA=$level emulated tests/run_cases.py "$@"
  found=$(RIVERRUN_ISA=$level emulated -c "$digest")
  if [ "$found" != "${bits:=$found}" ]; then
    echo "$level: products have other bits than at the lowest level" >&2
    exit 1
  fi
done
echo "$levels: products have the same bits"

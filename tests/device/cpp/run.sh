#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the C++ device program against a bundle and an Edge-LLM artifact, and runs it.
#
#   tests/device/cpp/run.sh BUNDLE EDGE_ARTIFACT OUT
#
# BUNDLE is a bundle's folder, EDGE_ARTIFACT an artifact of the same version for this machine (cutedsl_x86_64_..., the tarball or its folder), OUT a folder
# that takes cpp.log. CXX and CUDA_HOME choose the compiler (g++) and the CUDA toolkit (the one of nvcc, or /usr/local/cuda); BUILD names a folder
# that keeps what is built; BUILD_ONLY=1 runs nothing.
set -euo pipefail

fail() { echo "run.sh: $*" >&2; exit 2; }

[ $# -eq 3 ] || fail "usage: run.sh BUNDLE EDGE_ARTIFACT OUT"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle=$(cd "$1" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
cxx=${CXX:-g++}
host=$(uname -m)
[ -f "$bundle/lib/$host/libfmhaforge.a" ] || fail "$1 has no lib/$host/libfmhaforge.a: build the bundle with hosts=$host"
cuda=${CUDA_HOME:-$(for each in /usr/local/cuda "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /none/none)")")")" /usr/local/cuda-*; do
    if [ -f "$each/include/cuda_runtime.h" ]; then echo "$each"; break; fi; done)}
[ -f "$cuda/include/cuda_runtime.h" ] || fail "no cuda_runtime.h under '$cuda': name the CUDA toolkit's folder by CUDA_HOME"

build=${BUILD:-$(mktemp -d)}
mkdir -p "$build"
if [ -z "${BUILD:-}" ]; then trap 'rm -rf "$build"' EXIT; fi
edge=$2
if [ -f "$edge" ]; then
    mkdir -p "$build/edge"
    tar -xf "$edge" -C "$build/edge" --strip-components=1
    edge=$build/edge
fi
[ -f "$edge/libcutedsl_$host.a" ] || fail "$2 has no libcutedsl_$host.a: make one with scons edge-llm edge_llm=cutedsl_${host}_*"
edge=$(cd "$edge" && pwd)

python3 "$here/variants.py" "$bundle" > "$build/variants.inc"
flags=(-std=c++17 -O2 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -isystem "$cuda/include" "-I$build" "-I$bundle/include" "-I$bundle/cpp" "-I$edge/include")
jobs=()
for source in "$here"/*.cc "$bundle/cpp/cuteDslFMHAV2Runner.cpp"; do
    "$cxx" "${flags[@]}" -c "$source" -o "$build/$(basename "$source").o" &
    jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || fail "$cxx failed"; done
libraries=()
for each in "$cuda/lib64" "$cuda/lib" "$cuda/targets/$host-linux/lib"; do
    if [ -d "$each" ]; then libraries+=("-L$each" "-Wl,-rpath,$each"); fi
done
"$cxx" "$build"/*.o "$bundle/lib/$host/libfmhaforge.a" "$edge/libcutedsl_$host.a" -Wl,--wrap=dlsym "${libraries[@]}" -lcudart -ldl -lpthread -o "$build/device_program"
echo "built with $("$cxx" --version | head -n 1), CUDA in $cuda" | tee "$out/cpp.log"
if [ -n "${BUILD_ONLY:-}" ]; then exit 0; fi
"$build/device_program" 2>&1 | tee -a "$out/cpp.log"

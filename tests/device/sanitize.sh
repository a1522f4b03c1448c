#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one small case of every variant under compute-sanitizer, once per tool, and prints one line per tool.
#
#   sh tests/device/sanitize.sh BUNDLE LOGS [options of sanitize.py, such as --variant 'fmha_v2_d64*']
#
# LOGS is a folder for the tools' reports. TOOLS (default: memcheck initcheck racecheck) and PYTHON can be set from outside.
# Exits with 1 if a tool reports an error or a result is wrong.
set -u
if [ $# -lt 2 ]; then
    echo "usage: sanitize.sh BUNDLE LOGS [options of sanitize.py]" >&2
    exit 2
fi
bundle=$1 logs=$2
shift 2
mkdir -p "$logs" || exit 2
here=$(dirname "$0")
status=0
for tool in ${TOOLS:-memcheck initcheck racecheck}; do
    if compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
        "${PYTHON:-python3}" "$here/sanitize.py" --bundle "$bundle" "$@" >"$logs/$tool.log" 2>&1; then
        echo "$tool: clean ($(grep -c ' right$' "$logs/$tool.log") launches)"
    else
        status=1
        echo "$tool: NOT clean, see $logs/$tool.log"
        grep -v ' right$' "$logs/$tool.log" | head -n 20
    fi
done
exit $status

#!/bin/sh
# Compiles and runs this reproducer again, and reports the differences.

exec buddy-tui replay "$(dirname "$0")" --plain "$@"

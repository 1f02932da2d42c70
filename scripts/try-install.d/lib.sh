# shellcheck shell=bash
# What every way of scripts/try-install needs. A way sources this first, and may define `clean_up`,
# which is then called once at the end, however that comes, with the exit code.
#
# Set: ROOT (the repository), ATTUNE_BIN (the program), TRY (this way's name), TRY_DIR (an empty folder
# of its own, which is deleted in the end), LOGS (where to leave what helps after a failure).
set -euo pipefail
umask 022
: "${ROOT:?scripts/try-install NAME runs this}" "${ATTUNE_BIN:?}" "${TRY_REASON:?}"

TRY="$(basename "$0" .sh)"
SERVICES_DIR="${ATTUNE_SERVICES_DIR:-$ROOT/.services}"
# shellcheck disable=SC2034 # read by the ways
LOGS="$SERVICES_DIR/containers/logs/$TRY"
mkdir -p "$SERVICES_DIR/try-install"
TRY_DIR="$(mktemp -d "$SERVICES_DIR/try-install/$TRY.XXXXXX")"

say() { printf '%s: %s\n' "$TRY" "$*"; }
die() {
    printf '%s: error: %s\n' "$TRY" "$*" >&2
    exit 1
}

# skip REASON: this machine cannot do it.
skip() {
    printf '%s\n' "$*" >"$TRY_REASON"
    exit 77
}

# shellcheck disable=SC2329 # called by the trap
finish() {
    local code=$?
    trap - EXIT
    set +e
    [[ $(type -t clean_up) != function ]] || clean_up "$code"
    # A run's own folder may hold files of other accounts; they are deleted as root.
    rm -rf "$TRY_DIR"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Milliseconds since some moment.
now_ms() {
    local now=${EPOCHREALTIME/[.,]/}
    echo $((now / 1000))
}

# await SECONDS WHAT COMMAND...: until the command succeeds; fails when it does not in time.
await() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >"$TRY_DIR/await.out" 2>&1; do
        if ((SECONDS >= deadline)); then
            tail -n 5 "$TRY_DIR/await.out" >&2
            die "not in time: $what"
        fi
        sleep 0.2
    done
}

# Prints a free port of loopback below those that the kernel hands out.
free_port() {
    local port taken
    taken=" $(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '{n = split($2, a, ":"); printf "%s ", a[n]}')"
    while true; do
        port=$((15000 + RANDOM % 17000))
        [[ $taken == *" $(printf '%04X' "$port") "* ]] || break
    done
    echo "$port"
}

# alone COMMAND...: while no other way does the same: what ways share is made once.
alone() {
    local lock
    exec {lock}>"$SERVICES_DIR/try-install/.lock-$1"
    flock -w 900 "$lock" || die "another way has been at $1 for 15 minutes"
    "$@"
    exec {lock}>&-
}

# block SECTION WORDS: prints the block of shell lines of docs/INSTALL.md that has WORDS in it, below a
# heading of the second level. WORDS must be in one block there.
block() {
    local lines
    lines="$(awk -v section="## $1" -v words="$2" '
        /^## / { on = $0 == section }
        on && /^```$/ && inside { inside = 0; if (index(lines, words)) { found++; printf "%s", lines } }
        inside { lines = lines $0 "\n" }
        on && /^```sh$/ { inside = 1; lines = "" }
        END { exit found != 1 }' "$ROOT/docs/INSTALL.md")" ||
        die "docs/INSTALL.md has not one block of lines with '$2' below '## $1'"
    printf '%s\n' "$lines"
}

# every_block SECTION: fails unless each block of shell lines below a heading was asked for with `follow`,
# which counts them in BLOCKS.
every_block() {
    local all
    all="$(awk -v section="## $1" '/^## / { on = $0 == section } on && /^```sh$/ { n++ } END { print n + 0 }' "$ROOT/docs/INSTALL.md")"
    ((all == BLOCKS)) || die "docs/INSTALL.md has $all blocks of lines below '## $1', and $BLOCKS were run"
    say "docs/INSTALL.md: every block below '$1' was run"
}
BLOCKS=0

# Skips where containers cannot run, else prepares them and their settings.
need_containers() {
    local lines
    [[ $EUID -eq 0 ]] || skip "containers want root"
    "$ROOT/scripts/containers" install || skip "podman and what it needs cannot be installed"
    "$ROOT/scripts/containers" up
    lines="$("$ROOT/scripts/containers" env)"
    eval "$lines"
    # Only what podman says of its own failures: without systemd, which keeps the timers of health
    # checks, it would complain at every container.
    # shellcheck disable=SC2329 # called by the ways
    podman() { command podman --log-level=fatal "$@"; }
    podman run --rm --network none "$ATTUNE_TEST_BASE_IMAGE" true >"$TRY_DIR/first" 2>&1 ||
        skip "a container does not run here: $(tail -n1 "$TRY_DIR/first")"
}

# Copies the program to $1, without symbols where that can be done.
stripped_program() {
    install -m 755 "$ATTUNE_BIN" "$1"
    ! command -v strip >/dev/null || strip "$1"
}

# shellcheck disable=SC2034 # read by the ways
IMAGE=localhost/attune:test WORKER_IMAGE=localhost/attune-worker:test

# make_context FOLDER: what docker/Dockerfile is built from, as somebody has it who took a finished
# program; BUILD_ARGS are the arguments for it.
make_context() {
    mkdir -p "$1/dist" "$1/scripts"
    (cd "$ROOT" && cp -r Cargo.toml Cargo.lock LICENSE .dockerignore config crates migrations docker vendor "$1")
    cp "$ROOT/scripts/plant.rs" "$1/scripts"
    stripped_program "$1/dist/attune"
    BUILD_ARGS="--build-arg BINARY=dist/attune --build-arg BASE=$ATTUNE_TEST_BASE_IMAGE --build-arg RUST=$ATTUNE_TEST_BASE_IMAGE"
}

# Builds docker/Dockerfile with the program ATTUNE_BIN, unless that was done already: IMAGE and
# WORKER_IMAGE.
build_images() {
    local recipe target image made context="$TRY_DIR/context"
    recipe="$(cat "$ATTUNE_BIN" "$ROOT/docker/Dockerfile" "$ROOT/.dockerignore" | sha256sum | cut -c1-32)"
    recipe+="-$(podman image inspect --format '{{.Id}}' "$ATTUNE_TEST_BASE_IMAGE" | cut -c1-12)"
    make_context "$context"
    for target in attune-worker attune; do
        image="localhost/$target:test"
        made="$(podman image inspect --format '{{index .Labels "attune.recipe"}}' "$image" 2>/dev/null)" || made=""
        [[ $made != "$recipe" ]] || continue
        say "building $image"
        # shellcheck disable=SC2086 # several words
        nice -n 10 buildah bud --layers=false --file "$context/docker/Dockerfile" --target "$target" \
            $BUILD_ARGS --build-arg VERSION=0.0.0-test --build-arg REVISION=test \
            --label "attune.recipe=$recipe" --tag "$image" "$context" >"$TRY_DIR/$target.log" 2>&1 || {
            tail -n 30 "$TRY_DIR/$target.log" >&2
            die "$image cannot be built"
        }
    done
    rm -rf "$context"
}

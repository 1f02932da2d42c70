#!/usr/bin/env bash
# The two images: how large, who runs, what is in them and what is not, and that they work with a root
# that cannot be written, without a single right of root and without a network.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# What the image of a release build may weigh, unpacked.
ATTUNE_MAX_MB=60
# Containers and volumes of this run.
NAME="attune-try-image-$$"
CLOSED=(--read-only --read-only-tmpfs=false --tmpfs /tmp:mode=1777 --cap-drop ALL
    --security-opt no-new-privileges)

# shellcheck disable=SC2329 # called at the end
clean_up() {
    local image
    for image in attune attune-worker; do
        if podman container exists "$NAME-$image" 2>/dev/null; then
            if (($1)); then
                mkdir -p "$LOGS"
                podman logs "$NAME-$image" >"$LOGS/$image.log" 2>&1
                say "the log of $NAME-$image is $LOGS/$image.log"
            fi
            podman rm --force --time 5 "$NAME-$image" >/dev/null
        fi
        ! podman volume exists "$NAME-$image" 2>/dev/null || podman volume rm --force "$NAME-$image" >/dev/null
    done
}

# expect WHAT WANTED GOT
expect() { [[ $2 == "$3" ]] || die "$1 is '$3', not '$2'"; }

inspect() { podman image inspect --format "$2" "$1"; }

check_labels() {
    local image=$1 name
    expect "the user of $image" 10001:10001 "$(inspect "$image" '{{.Config.User}}')"
    expect "the entrypoint of $image" '[/usr/bin/attune]' "$(inspect "$image" '{{.Config.Entrypoint}}')"
    expect "the health check of $image" '[CMD /usr/bin/attune health]' "$(inspect "$image" '{{.HealthCheck.Test}}')"
    for name in title description licenses version revision; do
        [[ -n $(inspect "$image" "{{index .Labels \"org.opencontainers.image.$name\"}}") ]] ||
            die "$image has no label org.opencontainers.image.$name"
    done
    expect "the version of $image" 0.0.0-test "$(inspect "$image" '{{index .Labels "org.opencontainers.image.version"}}')"
}

# Which files are in `attune`: no program but one.
check_files() {
    local container listing programs
    container="$(podman create --no-healthcheck "$IMAGE")"
    listing="$(podman export "$container" | tar -tv --numeric-owner)"
    podman rm "$container" >/dev/null
    programs="$(awk '$1 ~ /^-..x/ && $NF !~ /(^|\/)lib(64)?\// { print $NF }' <<<"$listing")"
    expect "the programs in $IMAGE" usr/bin/attune "${programs#./}"
    awk '$1 ~ /^drwx/ && $2 == "10001/10001" && $NF ~ /^(\.\/)?var\/lib\/attune\/$/ { found = 1 } END { exit !found }' \
        <<<"$listing" || die "/var/lib/attune of $IMAGE does not belong to its user"
    awk '$1 == "drwxrwxrwt" && $NF ~ /^(\.\/)?tmp\/$/ { found = 1 } END { exit !found }' <<<"$listing" ||
        die "/tmp of $IMAGE is not everybody's"
    ! podman run --rm --no-healthcheck --network none --entrypoint /bin/sh "$IMAGE" -c true 2>/dev/null ||
        die "$IMAGE has a shell"
}

# run_demo IMAGE: the main job, with real programs, as the image's user.
run_demo() {
    podman run --rm "${CLOSED[@]}" --network none "$1" demo >"$TRY_DIR/demo.out" 2>"$TRY_DIR/demo.err" || {
        tail -n 20 "$TRY_DIR/demo.out" "$TRY_DIR/demo.err" >&2
        die "the demo fails in $1"
    }
    say "demo in $1: ok"
}

# run_standalone IMAGE NAME [PROGRAM...]: a server on a volume; its own check says that it is well, it
# runs what it is asked to, and it ends in order.
run_standalone() {
    local image=$1 name=$2 began
    shift 2
    began="$(now_ms)"
    podman run --detach --init --name "$name" "${CLOSED[@]}" --network none \
        --volume "$name:/var/lib/attune" "$image" standalone >/dev/null
    await 60 "$name is well" podman healthcheck run "$name"
    say "$image: well $(($(now_ms) - began)) ms after the start"
    # One that runs a program, and one that runs in the process itself.
    podman exec "$name" /usr/bin/attune submit core.echo -p hello=world --wait >"$TRY_DIR/echo.out"
    grep -q world "$TRY_DIR/echo.out" || die "core.echo returned something else: $(<"$TRY_DIR/echo.out")"
    if (($#)); then
        podman exec "$name" /usr/bin/attune submit core.command -p "argv=$1" --wait >"$TRY_DIR/command.out"
        grep -q 10001 "$TRY_DIR/command.out" || die "the program ran as somebody else: $(<"$TRY_DIR/command.out")"
    fi
    podman stop --time 40 "$name" >/dev/null
    expect "the exit code of $name" 0 "$(podman inspect --format '{{.State.ExitCode}}' "$name")"
    # A check that says yes to everything would say so now, too.
    podman start "$name" >/dev/null
    await 60 "$name is well again" podman healthcheck run "$name"
    ! podman exec --env ATTUNE__OPS__LISTEN=127.0.0.1:1 "$name" /usr/bin/attune health >/dev/null 2>&1 ||
        die "attune health says yes where nothing listens"
}

need_containers
alone build_images
size="$(inspect "$IMAGE" '{{.Size}}')"
say "$IMAGE: $((size / 1000000)) MB unpacked; $WORKER_IMAGE: $(($(inspect "$WORKER_IMAGE" '{{.Size}}') / 1000000)) MB"
# What users get is a release build; another one is larger.
[[ "$("$ATTUNE_BIN" --version)" != *'(release build'* ]] || ((size < ATTUNE_MAX_MB * 1000000)) ||
    die "$IMAGE has more than $ATTUNE_MAX_MB MB"
check_labels "$IMAGE"
check_labels "$WORKER_IMAGE"
check_files
run_demo "$IMAGE"
run_demo "$WORKER_IMAGE"
run_standalone "$IMAGE" "$NAME-attune"
run_standalone "$WORKER_IMAGE" "$NAME-attune-worker" '["/bin/sh", "-c", "id -u"]'

# shellcheck shell=bash
# A machine that boots a real systemd, for the ways that install services; sourced after lib.sh. Its
# network is its own loopback, so that every port is free there and nothing outside is touched.
#
# Set by `boot`: MACHINE, the container's name. `inside COMMAND...` runs something there.
# $TRY_DIR/shared is /shared there, readable.

inside() { podman exec "$MACHINE" "$@"; }

# shellcheck disable=SC2329 # called by lib.sh
clean_up() {
    [[ -n ${MACHINE:-} ]] || return 0
    if (($1)); then
        mkdir -p "$LOGS"
        inside journalctl --no-pager --output=short-precise >"$LOGS/journal.txt" 2>&1
        inside systemctl --no-pager --full status 'attune*' >"$LOGS/status.txt" 2>&1
        say "see $LOGS" >&2
    fi
    podman rm --force --time 5 "$MACHINE" >/dev/null 2>&1
}

is_booted() { [[ "$(inside systemctl is-system-running || true)" =~ ^(running|degraded)$ ]]; }

# boot IMAGE: starts a machine of this image of scripts/containers.
boot() {
    local image
    need_containers
    image="$("$ROOT/scripts/containers" image "$1")" || skip "the image $1 cannot be made"
    mkdir -p "$TRY_DIR/shared"
    MACHINE="attune-try-$TRY-$$"
    # Mounts are shared, as systemd makes them where it boots a real machine: what it mounts for a
    # service, such as its credentials, has to be seen there.
    podman run --detach --quiet --name "$MACHINE" --privileged --systemd=always --network none \
        --volume "$TRY_DIR/shared:/shared:ro" "$image" \
        sh -c 'mount --make-rshared / && exec /sbin/init' >/dev/null
    await 120 "the machine boots" is_booted
    say "systemd $(inside systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p') runs in $MACHINE"
}

# What systemd says of a unit: `property UNIT NAME`.
property() { inside systemctl show --value --property "$2" "$1"; }

is_active() { [[ "$(property "$1" ActiveState)" == active ]]; }

# expect_output TEXT COMMAND...: the command succeeds and says TEXT, a pattern of grep -E.
expect_output() {
    local wanted=$1
    shift
    "$@" >"$TRY_DIR/said" 2>&1 || {
        cat "$TRY_DIR/said" >&2
        die "failed: $*"
    }
    grep -Eq -- "$wanted" "$TRY_DIR/said" || {
        cat "$TRY_DIR/said" >&2
        die "no '$wanted' in what was said by: $*"
    }
}

# make_release: sets KEPT to the folder with what is released of the program. Made once for the same
# program and the same files around it, as packing takes a minute.
make_release() {
    local recipe
    recipe="$( (cd "$ROOT" && git rev-parse HEAD && sha256sum "$ATTUNE_BIN" scripts/release LICENSE docs/[A-Z]*.md && find config -type f -print0 | sort -z | xargs -0 sha256sum) |
        sha256sum | cut -c1-16)"
    KEPT="$SERVICES_DIR/try-install/released-$recipe"
    if [[ ! -s $KEPT/SHA256SUMS ]]; then
        rm -rf "$SERVICES_DIR"/try-install/released-*
        nice -n 10 "$ROOT/scripts/release" --binary "$ATTUNE_BIN" --out "$KEPT.new" >/dev/null
        mv "$KEPT.new" "$KEPT"
    fi
}

# release_files: puts what is released into $TRY_DIR/shared.
release_files() {
    alone make_release
    mkdir -p "$TRY_DIR/shared"
    cp "$KEPT"/* "$TRY_DIR/shared/"
    PACKAGE="$(basename "$TRY_DIR"/shared/attune_*.deb)"
    VERSION="${PACKAGE#attune_}" VERSION="${VERSION%_amd64.deb}"
    say "released: $(cd "$TRY_DIR/shared" && wc -c attune_*.deb attune-*.tar.gz | head -n2 | awk '{ printf "%s%s %s bytes", sep, $2, $1; sep = ", " }')"
}

# earlier_package: packs the same program under an earlier version, as the package `earlier.deb`.
earlier_package() {
    dpkg-deb --raw-extract "$TRY_DIR/shared/$PACKAGE" "$TRY_DIR/earlier"
    sed -i 's/^Version: .*/Version: 0.0.9/' "$TRY_DIR/earlier/DEBIAN/control"
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$TRY_DIR/earlier" "$TRY_DIR/shared/earlier.deb" >/dev/null
}

# apt_get ARGS...: as an administrator would, with what it says in $TRY_DIR/apt.
apt_get() {
    inside env DEBIAN_FRONTEND=noninteractive apt-get --yes --quiet --no-install-recommends "$@" \
        >"$TRY_DIR/apt" 2>&1 || {
        cat "$TRY_DIR/apt" >&2
        die "failed: apt-get $*"
    }
}

# all_files: the names of all files of the machine, except those of systems in memory and of /shared.
all_files() {
    inside find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /shared \) -prune \
        -o -printf '%p\n' | LC_ALL=C sort
}

# nothing_but_data BEFORE OTHERS DATA: since the list BEFORE was made, nothing has come to stay but what
# is below a path that matches OTHERS, which is not Attune's, or DATA.
nothing_but_data() {
    all_files >"$TRY_DIR/after"
    LC_ALL=C comm -13 "$1" "$TRY_DIR/after" | grep -vE "^($2)(/|\$)" >"$TRY_DIR/came" || true
    say "left behind, beside what is not Attune's: $(tr '\n' ' ' <"$TRY_DIR/came")"
    # By its name everywhere, in case it was there before.
    inside sh -c 'find / -xdev \( -path /proc -o -path /shared -o -path /var/log \) -prune -o -iname "*attune*" -print
        find /run /tmp /dev/shm -iname "*attune*"' >>"$TRY_DIR/came"
    ! grep -vE "^($3)(/|\$)" "$TRY_DIR/came" >"$TRY_DIR/left" || {
        sed 's/^/    /' "$TRY_DIR/left" >&2
        die "that should not have been left"
    }
}

# shellcheck shell=bash
# A private PostgreSQL for scripts/services.

URL_VARIABLE[postgres]=ATTUNE_TEST_POSTGRES_URL
# PostgreSQL refuses to be run by root.
ACCOUNT[postgres]=postgres

# Prints the directory of the server's programs: the newest Debian has, else those on the path.
postgres_binaries() {
    local newest
    newest="$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n1)"
    [[ -x $newest ]] || newest="$(command -v initdb)" || return 1
    dirname "$newest"
}

postgres_packages() { echo postgresql-15; }

postgres_own_url() {
    [[ -s "$DIR/postgres/port" ]] || return 1
    echo "postgres://$USER_NAME:$(state postgres/password)@127.0.0.1:$(state postgres/port)/$USER_NAME"
}

# An SSLRequest is answered with S or N by every server, before any authentication. A private one
# must also have finished its recovery.
postgres_probe() {
    [[ "$(speaks "$1" 5432 '\x00\x00\x00\x08\x04\xd2\x16\x2f')" =~ ^(53|4e)$ ]] || return 1
    [[ $1 != "$(postgres_own_url)" ]] ||
        "$(postgres_binaries)/pg_isready" -q -h 127.0.0.1 -p "$(state postgres/port)" -t 3
}

# Passwords travel in the clear: this is loopback, and the client's half of SCRAM costs an
# unoptimised test binary tens of milliseconds for each connection.
postgres_prepare() {
    local bin account="${ACCOUNT[postgres]}"
    [[ ! -s "$DIR/postgres/data/PG_VERSION" || ! -e "$DIR/postgres/created" ]] || return 0
    bin="$(postgres_binaries)"
    say "creating a PostgreSQL cluster in $DIR/postgres/data"
    rm -rf "$DIR/postgres/data"
    mkdir -p "$DIR/postgres/data"
    chmod 700 "$DIR/postgres/data"
    secret postgres/password
    [[ $EUID -ne 0 ]] || chown "$account:" "$DIR/postgres/data" "$DIR/postgres/password"
    run_as "$account" "$bin/initdb" -D "$DIR/postgres/data" --username="$USER_NAME" \
        --pwfile="$DIR/postgres/password" --auth=password --data-checksums --encoding=UTF8 \
        --no-locale --no-instructions >"$DIR/postgres/initdb.log" 2>&1 ||
        die "initdb failed, see $DIR/postgres/initdb.log"
}

postgres_launch() {
    mkdir -p "$DIR/postgres"
    postgres_prepare
    keep_or_pick postgres/port 1
    # A postmaster.pid left by a crash names an id that another process may have by now.
    rm -f "$DIR/postgres/data/postmaster.pid"
    local -a variables=()
    read -ra variables <<<"${ATTUNE_SERVICES_POSTGRES_VARIABLES-}"
    spawn postgres/server "$DIR/postgres/server.log" "${ACCOUNT[postgres]}" \
        env "${variables[@]}" "$(postgres_binaries)/postgres" -D "$DIR/postgres/data" \
        -c listen_addresses=127.0.0.1 -c port="$(state postgres/port)" \
        -c unix_socket_directories= -c max_connections=300 -c shared_buffers=512MB \
        -c fsync=on -c max_wal_size=2GB -c timezone=UTC -c log_timezone=UTC \
        -c log_lock_waits=on -c log_line_prefix='%m [%p] %d '
}

# After the first start: the database the URL names.
postgres_finish() {
    [[ ! -e "$DIR/postgres/created" ]] || return 0
    PGPASSWORD="$(state postgres/password)" "$(postgres_binaries)/psql" -qX -v ON_ERROR_STOP=1 \
        -h 127.0.0.1 -p "$(state postgres/port)" -U "$USER_NAME" -d postgres \
        -c "CREATE DATABASE $USER_NAME" >&2
    touch "$DIR/postgres/created"
}

# INT is PostgreSQL's fast shutdown, QUIT its immediate one: no checkpoint, recovery at the start.
postgres_stop() { end postgres/server INT QUIT; }
postgres_kill() { end postgres/server QUIT; }
postgres_env() { printf 'export ATTUNE_TEST_POSTGRES_URL=%q\n' "$1"; }

#!/usr/bin/env bash
# The Debian package on a machine that boots systemd: it installs and starts nothing, says what is
# missing when that is started, serves, leaves an upgrade to whoever runs the system, comes back with its
# data after a removal, and after a purge nothing is left but data. Then the lines of docs/INSTALL.md.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=booted.bash
source "$ROOT/scripts/try-install.d/booted.bash"

# What Debian and systemd write for themselves, and the homes with what was stored.
SYSTEM='/var/log|/var/cache|/var/lib/(apt|dpkg|systemd)|/var/backups|/etc/(passwd|shadow|group|gshadow)-?'
DATA='/var/lib/attune|/var/lib/attune-worker'

check_nothing_started() {
    local started
    started="$(inside systemctl list-units --all --plain --no-legend 'attune*')"
    [[ -z $started ]] || die "the installation has started or loaded: $started"
    started="$(inside systemctl list-unit-files --state=enabled --plain --no-legend 'attune*' || true)"
    [[ -z $started ]] || die "the installation has enabled: $started"
    say "nothing is started, nothing is enabled"
}

check_installed() {
    expect_output "^attune $VERSION " inside attune --version
    inside dpkg --verify attune || die "files are not as the package has them"
    [[ "$(inside stat -c '%a %U' /etc/attune/credentials)" == "700 root" ]] || die "the credentials are not root's alone"
    inside getent passwd attune attune-worker >/dev/null || die "the accounts are missing"
    local file
    for file in /usr/share/man/man1/{attune,attune-worker,attune-submit}.1.gz /usr/share/doc/attune/copyright \
        /usr/share/doc/attune/CHANGELOG.md.gz /usr/share/bash-completion/completions/attune; do
        inside test -s "$file" || die "$file is missing"
    done
    # Prints what it does not like and ends well all the same. There is no man to ask for the pages.
    inside sh -c 'systemd-analyze verify --man=no /lib/systemd/system/attune*' >"$TRY_DIR/verify" 2>&1 || true
    [[ ! -s $TRY_DIR/verify ]] || {
        cat "$TRY_DIR/verify" >&2
        die "systemd-analyze does not like the units"
    }
    say "the files are as packed, and systemd-analyze verify says nothing"
}

check_missing_addresses() {
    ! inside systemctl start attune.target >"$TRY_DIR/said" 2>&1 || die "it starts without addresses"
    expect_output '/etc/attune/credentials/broker.url is missing' inside journalctl --no-pager -u attune-credentials.service
    ! is_active attune-executor.service || die "a role runs without addresses"
    say "without addresses: $(grep -m1 'is missing' "$TRY_DIR/said" | sed 's/.*]: //')"
    inside systemctl stop 'attune*'
    inside systemctl reset-failed
}

# Sets ID to that of an execution that has succeeded.
submit() {
    expect_output '"id"' inside attune submit core.echo -p message=hi --wait --json
    ID="$(grep -oE '"id": ?"?[0-9]+' "$TRY_DIR/said" | grep -oE '[0-9]+' | head -n1)"
    expect_output '^status +succeeded' inside attune executions show "$ID"
}

release_files
earlier_package
boot machine
all_files >"$TRY_DIR/before"

apt_get install /shared/earlier.deb
expect_output 'nothing was started' cat "$TRY_DIR/apt"
check_nothing_started
inside systemctl enable --now attune-standalone.service
await 60 "standalone is active" is_active attune-standalone.service
submit
say "execution $ID succeeded in attune-standalone.service"

pid="$(property attune-standalone.service MainPID)"
apt_get install "/shared/$PACKAGE"
expect_output 'systemctl restart attune-standalone.service' cat "$TRY_DIR/apt"
say "the upgrade from 0.0.9 to $VERSION says:"
sed -n '/^attune: /,$s/^/    /p' "$TRY_DIR/apt"
[[ "$(property attune-standalone.service MainPID)" == "$pid" ]] || die "the upgrade has restarted standalone"
submit
check_installed
inside systemctl restart attune-standalone.service
[[ "$(property attune-standalone.service MainPID)" != "$pid" ]] || die "standalone was not restarted"

kept=$ID
inside sh -c 'echo "# mine" >>/etc/attune/attune.yaml'
apt_get remove attune
check_nothing_started
! inside sh -c 'grep -xs attune /proc/[0-9]*/comm' || die "something of it runs on after the removal"
apt_get install "/shared/$PACKAGE"
check_nothing_started
expect_output '^# mine' inside cat /etc/attune/attune.yaml
check_missing_addresses
inside systemctl start attune-standalone.service
expect_output '^status +succeeded' inside attune executions show "$kept"
say "removed and installed again: the settings are there, and execution $kept is"

apt_get purge attune
expect_output '/var/lib/attune stays' cat "$TRY_DIR/apt"
nothing_but_data "$TRY_DIR/before" "$SYSTEM" "$DATA"

# follow WORDS [TEXT]: runs the block of docs/INSTALL.md with these words, word for word, as somebody
# does who stands beside the package; it says TEXT, a pattern of grep -E.
follow() {
    block "Debian package" "$1" >"$TRY_DIR/shared/lines.sh"
    BLOCKS=$((BLOCKS + 1))
    expect_output "${2:-}" inside sh -c 'cd /work && DEBIAN_FRONTEND=noninteractive bash -exu /shared/lines.sh'
    say "docs/INSTALL.md, the lines with '$1'${2:+: $(grep -E "$2" "$TRY_DIR/said" | tail -n1)}"
}

works() { expect_output '"message": "hi"' inside attune submit core.echo -p message=hi --wait; }
does_work() { inside attune submit core.echo -p message=hi --wait; }
# has_kept KEPT LOST: of these executions, the first is known, and the second is not.
has_kept() {
    expect_output '^status +succeeded' inside attune executions show "$1"
    ! inside attune executions show "$2" >"$TRY_DIR/said" 2>&1 || die "execution $2 is younger than the backup, and is there"
}

inside rm -r /var/lib/attune
inside sh -c 'mkdir /work && ln -s /shared/attune_*_amd64.deb /work'
follow "enable --now attune-standalone" 'core\.echo *\| *succeeded'
submit
kept=$ID
inside sh -c "install -d -o attune -g attune -m 700 /work/backup && runuser -u attune -- attune --set data_dir=/var/lib/attune backup /work/backup/COPY && mv /work/backup/COPY /work/COPY"
submit
follow "attune.db-wal"
await 60 "standalone works after the restore" does_work
has_kept "$kept" "$ID"
inside systemctl disable --now attune-standalone.service

# Debian starts them when it installs them, which was done before here.
inside systemctl start postgresql.service rabbitmq-server.service
await 60 "PostgreSQL answers" inside pg_isready -q
follow "enable --now attune.target" 'core\.echo *\| *succeeded'
submit
kept=$ID
inside sh -c "cd /work && (umask 077; su postgres -c 'pg_dump -Fc attune' > attune.dump)"
submit
follow "pg_restore"
await 90 "work goes on after the restore" does_work
has_kept "$kept" "$ID"
follow "ALTER ROLE"
await 90 "work goes on with new passwords" does_work
expect_output 'amqp://guest:new-two@' inside cat /etc/attune/credentials/broker.url

# What an action's schema calls secret can no longer be read in the database.
follow "secrets new-key"
await 90 "work goes on with a key for secrets" does_work
cat >"$TRY_DIR/shared/secret.yaml" <<'END'
ref: shop.pay
run: {builtin: echo}
parameters: {type: object, properties: {card: {type: string, secret: true}}}
END
inside attune action apply /shared/secret.yaml
expect_output '"card": "\*+"' inside attune submit shop.pay -p card=4111-1111-1111 --wait
expect_output 'shop.pay' inside su postgres -c 'pg_dump --data-only attune'
! grep -q 4111-1111-1111 "$TRY_DIR/said" || die "a secret parameter can be read in the database"
say "a secret parameter reached its program, and cannot be read in the database"

apt_get purge attune
follow "dropdb"
# A new database on the broker of before: it is no other system's. This block was counted already.
inside rabbitmqctl -q change_password guest guest
BLOCKS=$((BLOCKS - 1))
follow "enable --now attune.target" 'core\.echo *\| *succeeded'
works
every_block "Debian package"

#!/usr/bin/env bash
# All roles as services of a systemd that has booted, on PostgreSQL and RabbitMQ of the same machine:
# they start in any order, also when PostgreSQL comes last; what is killed or hangs comes back; a worker
# that is stopped lets end what runs; an upgrade restarts nothing; after the purge only data is left.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=booted.bash
source "$ROOT/scripts/try-install.d/booted.bash"

ROLES=(executor completion-listener stats api worker)
# How exposed a unit may be, as systemd-analyze counts.
CLOSED_BELOW=2.0 PROGRAMS_BELOW=3.0
SYSTEM='/var/log|/var/cache|/var/lib/(apt|dpkg|systemd|postgresql|rabbitmq)|/var/backups|/etc/(passwd|shadow|group|gshadow)-?'
DATA='/var/lib/attune|/var/lib/attune-worker|/var/lib/(private/)?attune-worker-batch|/var/lib/private'

# What protects the units that run no programs is said six times, and the same each time.
check_alike() {
    local unit wanted="" block
    for unit in "$ROOT"/config/systemd/attune-{executor,completion-listener,stats,api,migrate,credentials}.service; do
        block="$(sed -n '/^# It runs nobody/,/^$/p' "$unit")"
        [[ -n $block && ${wanted:=$block} == "$block" ]] || die "$unit is not protected as the others are"
    done
}

check_exposure() {
    local unit figure below
    for unit in migrate "${ROLES[@]}" worker@batch standalone; do
        below=$CLOSED_BELOW
        [[ $unit != worker* && $unit != standalone ]] || below=$PROGRAMS_BELOW
        figure="$(inside systemd-analyze security --no-pager "attune-$unit.service" |
            sed -n 's/.*Overall exposure level for .*: \([0-9.]*\) .*/\1/p')"
        say "exposure of attune-$unit.service: ${figure:-unknown}"
        awk -v figure="${figure:-10}" -v below="$below" 'BEGIN { exit !(figure < below) }' ||
            die "attune-$unit.service is exposed by ${figure:-unknown}, which is not below $below"
    done
}

prepare_servers() {
    local password
    password="$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')"
    inside systemctl start postgresql.service
    await 60 "PostgreSQL answers" inside pg_isready -q
    inside su postgres -c "psql -qX -v ON_ERROR_STOP=1 -c \"CREATE ROLE attune LOGIN PASSWORD '$password'\" -c 'CREATE DATABASE attune OWNER attune'"
    inside systemctl stop postgresql.service
    write_address database "postgres://attune:$password@127.0.0.1/attune"
    write_address broker amqp://127.0.0.1
}

write_address() { podman exec --interactive "$MACHINE" install -m 600 /dev/stdin "/etc/attune/credentials/$1.url" <<<"$2"; }

all_active() {
    local role
    for role in "${ROLES[@]}"; do is_active "attune-$role.service" || return 1; done
}

are_waiting() {
    local role
    for role in "${ROLES[@]}"; do
        [[ "$(property "attune-$role.service" ActiveState)" == activating ]] || return 1
    done
}

start_in_the_worst_order() {
    inside systemctl start --no-block attune.target
    # The first try to migrate ends first.
    await 90 "every role waits for its servers" are_waiting
    inside systemctl start rabbitmq-server.service
    are_waiting || die "a role does not wait for PostgreSQL"
    inside systemctl start postgresql.service
    await 120 "every role is active" all_active
    say "every role is active; PostgreSQL came last"
}

# One execution from start to end.
works() { expect_output '"message": "hi"' inside attune submit core.echo -p message=hi --wait; }
# The same, for `await`: ids that were refused because nobody decides yet are no failure.
does_work() { inside attune submit core.echo -p message=hi --wait; }

count_succeeded() {
    inside su postgres -c "psql -qXAt attune -c \"SELECT count(*) FROM attune.execution WHERE status = 'succeeded'\""
}

check_health() {
    local role port=9141
    for role in "${ROLES[@]}"; do
        local variable=ATTUNE__METRICS__LISTEN
        # They stand in the order of their ports, which is that of the units.
        case "$role" in
        completion-listener) port=9142 ;;
        stats) port=9143 ;;
        api) port=9144 variable=ATTUNE__OPS__LISTEN ;;
        worker) port=9145 ;;
        esac
        await 30 "$role is healthy" inside env "$variable=127.0.0.1:$port" attune health
    done
    say "attune health: every role is ready at its own port"
}

# is_another UNIT PID: the unit is active with another process.
is_another() {
    local now
    now="$(property "$1" MainPID)"
    [[ $now != 0 && $now != "$2" ]] && is_active "$1"
}

kill_executor() {
    local pid began
    pid="$(property attune-executor.service MainPID)"
    began="$(now_ms)"
    inside sh -c "kill -9 $pid"
    await 30 "the executor is back after kill -9" is_another attune-executor.service "$pid"
    await 90 "work goes on after kill -9" does_work
    say "kill -9 of the executor: the next execution was done after $(($(now_ms) - began)) ms"
}

hang_executor() {
    local pid began
    pid="$(property attune-executor.service MainPID)"
    began="$(now_ms)"
    inside sh -c "kill -STOP $pid"
    await 180 "the watchdog ends an executor that hangs" is_another attune-executor.service "$pid"
    say "SIGSTOP to the executor: another one was active after $(($(now_ms) - began)) ms"
    expect_output 'Watchdog timeout' inside journalctl --no-pager -u attune-executor.service
    await 90 "work goes on after the watchdog" does_work
}

# apply REF PROGRAM [LINE]: an action that runs a line of shell.
apply() {
    printf '%s\n' "ref: $1" "run: {program: [/bin/sh, -c, '$2']}" "timeout_seconds: 60" "${3:-}" >"$TRY_DIR/shared/action.yaml"
    inside attune action apply /shared/action.yaml >/dev/null
}

# begin REF: submits one and waits until it runs; sets ID.
begin() {
    expect_output '"id"' inside attune submit "$1" --json
    ID="$(grep -oE '"id": ?"?[0-9]+' "$TRY_DIR/said" | grep -oE '[0-9]+' | head -n1)"
    await 30 "execution $ID runs" has_status running
}

has_status() { inside attune executions show "$ID" | grep -Eq "^status +$1\$"; }

drain_worker() {
    local began
    apply drain.try 'sleep 5; echo "{\"slept\": true}"'
    begin drain.try
    began="$(now_ms)"
    inside systemctl stop attune-worker.service
    say "systemctl stop attune-worker took $(($(now_ms) - began)) ms"
    expect_output 'the worker drains.*"running_count":1' inside journalctl --no-pager -u attune-worker.service
    await 10 "what ran when the worker was stopped has succeeded" has_status succeeded
    say "what ran when the worker was stopped has succeeded"
    inside systemctl start attune-worker.service
    works
}

# So many processes have the argument 4242.
are_asleep() {
    [[ "$(inside sh -c 'grep -slzx "sleep\|/bin/sleep" /proc/[0-9]*/cmdline | xargs -r grep -slzx "424[2]" | wc -l')" == "$1" ]]
}

kill_worker() {
    local pid began
    # One stays in its process group, one leaves it and what would mark it.
    apply killed.try 'env -i /usr/bin/setsid /bin/sleep 4242 & exec sleep 4242' 'on_worker_lost: fail'
    begin killed.try
    await 10 "both programs run" are_asleep 2
    expect_output 'each run gets a cgroup' inside journalctl --no-pager -u attune-worker.service
    pid="$(property attune-worker.service MainPID)"
    began="$(now_ms)"
    inside sh -c "kill -9 $pid"
    await 30 "the worker is back after kill -9" is_another attune-worker.service "$pid"
    are_asleep 0 || die "programs of a worker that was killed run on"
    say "kill -9 of the worker: another was active after $(($(now_ms) - began)) ms, and nothing that it ran is left"
    # Its lease would last for a minute.
    await 30 "nobody waits for the lease of a worker that was killed" has_status abandoned
    say "its slot was free at most $(($(now_ms) - began)) ms after kill -9"
    works
}

# check_closed POOL ACCOUNT: what a program of this pool has of the machine is neither the message bus of
# the system nor its shared memory, and it runs as the account with this number.
check_closed() {
    # shellcheck disable=SC2016 # expanded where it runs
    apply closed.try 'touch /dev/shm/attune-try; ls /run/dbus >/dev/null 2>&1; echo "{\"bus\": $?, \"account\": $(id -u)}"' "$1"
    expect_output '"bus": 2' inside attune submit closed.try --wait
    grep -Eq "\"account\": $2,?\$" "$TRY_DIR/said" || die "it ran as another account than $2: $(<"$TRY_DIR/said")"
    ! inside test -e /dev/shm/attune-try || die "programs write to the machine's own /dev/shm"
}

use_a_pool() {
    check_closed "" "$(inside id -u attune-worker)"
    apply pool.try 'echo "{\"pool\": \"batch\"}"' 'pool: batch'
    inside systemctl enable --now attune-worker@batch.service
    expect_output '"pool": "batch"' inside attune submit pool.try --wait
    # One of those that systemd gives out.
    check_closed 'pool: batch' '6[0-9]{4}'
    say "an execution ran in attune-worker@batch.service"
}

processes() {
    local role
    for role in "${ROLES[@]}" worker@batch; do property "attune-$role.service" MainPID; done
}

upgrade() {
    local before pid
    before="$(processes)"
    apt_get install "/shared/$PACKAGE"
    say "the upgrade from 0.0.9 to $VERSION says:"
    sed -n '/^attune: /,$s/^/    /p' "$TRY_DIR/apt"
    grep -q 'systemctl restart attune.target' "$TRY_DIR/apt" || die "the upgrade does not say how to restart"
    [[ "$(processes)" == "$before" ]] || die "the upgrade has restarted something"
    works
    inside systemctl restart attune.target
    all_active || die "not every role is active after the restart"
    for pid in $(processes); do
        [[ "$(inside readlink "/proc/$pid/exe")" == /usr/bin/attune ]] || die "process $pid is not of the new program"
        [[ $'\n'$before$'\n' != *$'\n'$pid$'\n'* ]] || die "process $pid was not restarted"
    done
    await 60 "work goes on after the upgrade" does_work
    say "the upgrade restarted nothing; systemctl restart attune.target restarted all"
}

check_alike
release_files
earlier_package
boot machine
all_files >"$TRY_DIR/before"
apt_get install /shared/earlier.deb
prepare_servers
start_in_the_worst_order
works
say "an execution ran; SELECT count(*) … WHERE status = 'succeeded': $(count_succeeded)"
check_health
check_exposure
use_a_pool
drain_worker
kill_worker
kill_executor
hang_executor
upgrade

apt_get purge attune
expect_output '/var/lib/attune-worker stays' cat "$TRY_DIR/apt"
inside systemctl stop postgresql.service rabbitmq-server.service
nothing_but_data "$TRY_DIR/before" "$SYSTEM" "$DATA"

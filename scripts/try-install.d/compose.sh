#!/usr/bin/env bash
# docker/compose.yaml from an empty folder: the whole cluster with two workers comes up and runs what
# it is asked to; an executor and RabbitMQ are killed under load, and everything that was accepted has
# ended once; the data outlives `down` and `up`; the profile `single` is one process. First the lines of
# docs/INSTALL.md, with podman where they say docker.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Prefix of the containers and volumes of this run.
PROJECT="attune-try-$$"
ACTIONS=8
# In each portion of the load, and how many portions there are at most.
PORTION=20
MAX_PORTIONS=200
# Portions that must have been accepted before the first fault, and after the last.
LEAD=3

# compose PROFILE ARGS...
compose() {
    local profile=$1
    shift
    (cd "$TRY_DIR/docker" && "$ROOT/scripts/containers" compose -p "$PROJECT" \
        -f compose.yaml -f compose.podman.yaml --profile "$profile" "$@") \
        >>"$TRY_DIR/compose.log" 2>&1 || {
        tail -n 30 "$TRY_DIR/compose.log" >&2
        die "compose $* failed"
    }
}

# compose_down PROFILE ARGS...: podman-compose takes the second of `--scale worker=2` for an orphan.
compose_down() {
    local profile=$1
    shift
    compose "$profile" down --remove-orphans "$@"
}

containers() { podman ps --all --filter "label=io.podman.compose.project=$PROJECT" --format '{{.Names}}'; }

# shellcheck disable=SC2329 # called at the end
clean_up() {
    local name
    [[ -z ${load:-} ]] || kill "$load" 2>/dev/null
    if (($1)) && [[ -d $TRY_DIR/docker ]]; then
        mkdir -p "$LOGS"
        cp "$TRY_DIR"/*.log "$LOGS" 2>/dev/null
        podman ps --all >"$LOGS/containers" 2>&1
        for name in $(containers); do podman logs "$name" >"$LOGS/$name.log" 2>&1; done
        say "the logs of the containers are in $LOGS"
    fi
    if [[ -d $TRY_DIR/docker/secrets ]]; then
        (compose cluster down -v --remove-orphans)
    fi
    [[ ! -d $TRY_DIR/checkout/docker/secrets ]] || (page docker compose down -v)
}

attune() { "$ATTUNE_BIN" "$@"; }

# make_key: sets the key by which `attune` asks from here on.
make_key() {
    compose cluster run --rm -T api keys create try --role admin --database
    # What compose says stands in the log, the key as a line of its own.
    ATTUNE_KEY="$(grep -oE '^atk_[A-Za-z0-9_-]+' "$TRY_DIR/compose.log" | tail -n1)"
    [[ -n $ATTUNE_KEY ]] || die "no key was made"
    export ATTUNE_KEY
}

# check_tls: who does not know the authority, or speaks no TLS, gets no further.
check_tls() {
    local said
    said="$(env --unset ATTUNE_CA_FILE "$ATTUNE_BIN" queues --url "$ATTUNE_URL" 2>&1)" && die "a stranger's certificate is believed"
    [[ $said == *"--ca-file"* ]] || die "without the authority: $said"
    said="$("$ATTUNE_BIN" queues --url "${ATTUNE_URL/https/http}" 2>&1)" && die "plain HTTP is served"
    [[ $said == *TLS_REQUIRED* ]] || die "in the clear: $said"
}
# One value of the database.
sql() { podman exec "${PROJECT}_postgres_1" psql -XAtq -U attune -d attune -c "$1"; }

# Prints the metrics of service or container $1, as another container of the network gets them.
metrics() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    podman exec "${PROJECT}_worker_1" bash -c 'exec 3<>"/dev/tcp/$1/9090" &&
        printf "GET /metrics HTTP/1.1\r\nHost: $1:9090\r\nConnection: close\r\n\r\n" >&3 && cat <&3' get "$1"
}

# Prints what Attune's counter $2 says in container $1.
counter() { metrics "$1" | awk -v name="$2" '$1 == name { print int($2) }'; }

# crash SERVICE: its first process dies as if by a fault of its own; compose said `restart`, so the
# engine starts it again, and the load goes on.
crash() {
    local name="${PROJECT}_$1_1" before began
    before="$(podman inspect --format '{{.State.Pid}}' "$name")"
    say "killing $1 under load, $(accepted) accepted"
    began="$(now_ms)"
    kill -KILL "$before"
    await 30 "$1 is started again" is_running_anew "$name" "$before"
    await 180 "executions are accepted after the death of $1" is_accepted $(($(accepted) + LEAD * PORTION))
    say "$((LEAD * PORTION)) more accepted $(($(now_ms) - began)) ms after the death of $1"
}

# shellcheck disable=SC2329 # called by await
is_running_anew() {
    [[ "$(podman inspect --format '{{.State.Running}}' "$1")" == true ]] &&
        [[ "$(podman inspect --format '{{.State.Pid}}' "$1")" != "$2" ]]
}

# --- the load --------------------------------------------------------------------------------

# Submits portions until $TRY_DIR/enough is there. Each line has a key, so what was refused or in the
# dark while servers were away is asked for again and is the same execution.
submit_portions() {
    local portion
    for ((portion = 1; portion <= MAX_PORTIONS; portion++)); do
        [[ ! -e $TRY_DIR/enough ]] || break
        attune submit --file "$TRY_DIR/portion" --key "portion-$portion" --json \
            >"$TRY_DIR/accepted.$portion.new" 2>>"$TRY_DIR/submit.log"
        mv "$TRY_DIR/accepted.$portion.new" "$TRY_DIR/accepted.$portion"
    done
}

# Whether two workers live, each with a name of its own, although nobody gave them any. The lease of
# one that could not give it back, because PostgreSQL was ended beside it, takes a minute to end.
are_two_workers() {
    [[ "$(sql "SELECT count(*), count(DISTINCT name) FROM attune.worker_lease WHERE expires_at > now()")" == '2|2' ]]
}

# How many executions the API has said yes to.
accepted() { cat "$TRY_DIR"/accepted.[0-9]* 2>/dev/null | awk '$1 == "\"accepted\":" { n += $2 } END { print n + 0 }'; }
# shellcheck disable=SC2329 # called by await
is_accepted() { (($(accepted) >= $1)) || ! kill -0 "$load"; }
# shellcheck disable=SC2329 # called by await
is_done() { [[ "$(sql "SELECT count(*) FROM attune.execution_active")" == 0 ]]; }

# The executions of the load: all, different ones, succeeded, in the first try. Not in the first attempt:
# a grant that the executor or the broker took along before a worker had it is granted anew.
tally() {
    sql "SELECT count(*), count(DISTINCT request_id), count(*) FILTER (WHERE status = 'succeeded'),
                count(*) FILTER (WHERE last_error IS NULL)
         FROM attune.execution WHERE action_ref LIKE 'try.%'"
}

prepare_load() {
    local number
    : >"$TRY_DIR/portion"
    for ((number = 1; number <= ACTIONS; number++)); do
        cat >"$TRY_DIR/action.yaml" <<END
ref: try.work$number
run: {program: [/bin/sh, -c, 'sleep 0.2; echo "\$ATTUNE_EXECUTION_ID"']}
timeout_seconds: 60
policy: {concurrency: {limit: 2}, queue: {max_length: 5000, timeout_seconds: 3600}}
END
        attune action apply "$TRY_DIR/action.yaml" >>"$TRY_DIR/submit.log" 2>&1
    done
    for ((number = 0; number < PORTION; number++)); do
        printf '{"action_ref": "try.work%d", "parameters": {"n": %d}}\n' $((number % ACTIONS + 1)) "$number"
    done >"$TRY_DIR/portion"
}

check_secrets() {
    local before
    "$TRY_DIR/docker/make-secrets" >/dev/null
    before="$(cd "$TRY_DIR/docker/secrets" && sha256sum -- *)"
    "$TRY_DIR/docker/make-secrets" >/dev/null
    [[ $before == "$(cd "$TRY_DIR/docker/secrets" && sha256sum -- *)" ]] || die "make-secrets overwrites secrets"
    mkdir -p "$TRY_DIR/other/secrets"
    cp "$TRY_DIR/docker/make-secrets" "$TRY_DIR/other"
    echo 'p@ss/w:rd' >"$TRY_DIR/other/secrets/postgres_password"
    ! "$TRY_DIR/other/make-secrets" >/dev/null 2>&1 || die "make-secrets takes a password that fits into no URL"
    openssl verify -CAfile "$TRY_DIR/docker/secrets/api_ca.pem" -verify_hostname api \
        "$TRY_DIR/docker/secrets/api_cert.pem" >/dev/null || die "make-secrets makes a certificate that nobody believes"
    [[ "$(stat -c %a "$TRY_DIR/docker/secrets/api_ca_key.pem")" == 400 ]] || die "others can read the key of the authority"
    [[ "$(stat -c %a "$TRY_DIR/docker/secrets")" == 700 ]] || die "others can enter the folder of the secrets"
}

# What this machine lets others reach: the API on loopback.
check_ports() {
    local name published
    published="$(for name in $(containers); do podman port "$name"; done)"
    [[ $published == "8080/tcp -> 127.0.0.1:$ATTUNE_API_PORT" ]] || die "published: $published"
}

# The role of the workers, whose password programs can read, is nobody in PostgreSQL.
check_role() {
    local role
    role="$(sql "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication FROM pg_roles WHERE rolname = current_user")"
    [[ $role == f ]] || die "the role attune may do more than it needs"
}

# The check of each image and of both servers says yes.
check_health() {
    local name
    for name in $(containers); do
        [[ $name != *_migrate_1 ]] || continue
        await 60 "$name is well" podman healthcheck run "$name"
    done
    for name in executor completion-listener stats worker; do
        metrics "$name" | grep -q '^# TYPE ' || die "no metrics of $name: $(metrics "$name")"
    done
    say "$(containers | wc -l) containers, all well"
}

run_cluster() {
    local began runs=0 wanted total name
    began="$(now_ms)"
    compose cluster up -d --scale worker=2
    say "compose up returned after $(($(now_ms) - began)) ms"
    await 180 "the API" attune health --url "$ATTUNE_URL"
    make_key
    check_tls
    await 180 "a first execution" attune submit core.echo -p message=hi --wait
    say "first execution done $(($(now_ms) - began)) ms after the start of compose up"
    check_ports
    check_role
    check_health

    prepare_load
    # The runs that the workers count before the load.
    submit_portions &
    load=$!
    await 60 "executions are accepted" is_accepted $((LEAD * PORTION))
    crash executor
    crash rabbitmq
    touch "$TRY_DIR/enough"
    wait "$load" || die "a portion was not accepted: $(tail -n 3 "$TRY_DIR/submit.log")"
    load=""
    wanted="$(accepted)"
    began="$(now_ms)"
    await 300 "everything has ended" is_done
    say "$wanted accepted; the last ended $(($(now_ms) - began)) ms after the last was accepted"
    total="$(tally)"
    [[ $total == "$wanted|$wanted|$wanted|$wanted" ]] ||
        die "accepted $wanted; in the database: all|different|succeeded|first try = $total"
    for name in $(containers | grep _worker_); do runs=$((runs + $(counter "$name" worker_runs_total))); done
    ((runs == $(sql 'SELECT count(*) FROM attune.execution_history'))) ||
        die "workers began $runs runs, and $(sql 'SELECT count(*) FROM attune.execution_history') executions ended"
    say "each succeeded once: $total; two workers began $runs runs in all"

    compose_down cluster
    [[ -z $(containers) ]] || die "compose down leaves $(containers)"
    began="$(now_ms)"
    compose cluster up -d --scale worker=2
    await 180 "an execution after down and up" attune submit core.echo -p message=hi --wait
    say "down and up: executions again after $(($(now_ms) - began)) ms"
    [[ "$(tally)" == "$total" ]] || die "after down and up: $(tally), not $total"
    await 90 "two workers, each with a name of its own" are_two_workers
    compose_down cluster -v
    [[ -z $(podman volume ls --quiet --filter "label=io.podman.compose.project=$PROJECT") ]] ||
        die "compose down -v leaves volumes"
}

run_single() {
    local began
    began="$(now_ms)"
    compose single up -d standalone
    await 60 "the API of the profile single" attune health --live --url "$ATTUNE_URL"
    # It made the first key itself, as its database is a file that it has for itself.
    ATTUNE_KEY="$(podman exec "${PROJECT}_standalone_1" cat /var/lib/attune/admin.key)"
    await 60 "an execution of the profile single" attune submit core.echo -p message=hi --wait
    say "single: first execution done $(($(now_ms) - began)) ms after the start of compose up"
    [[ "$(containers)" == "${PROJECT}_standalone_1" ]] || die "the profile single starts $(containers)"
    compose_down single
    compose single up -d standalone
    await 60 "an execution after down and up" attune submit core.echo -p message=hi --wait
    [[ "$(attune executions list --action core.echo --json | grep -c '"succeeded"')" == 2 ]] ||
        die "the profile single has forgotten an execution"
    compose_down single -v
}

# page COMMAND...: in the folder docker/ of the checkout, with a docker that is podman.
page() {
    (cd "$TRY_DIR/checkout/docker" && PATH="$TRY_DIR/bin:$PATH" COMPOSE_PROJECT_NAME="$PROJECT-page" \
        env --unset ATTUNE_IMAGE --unset ATTUNE_WORKER_IMAGE "$@") \
        >"$TRY_DIR/page.log" 2>&1 || {
        tail -n 30 "$TRY_DIR/page.log" >&2
        die "failed on what docs/INSTALL.md says: $*"
    }
}

# follow WORDS: runs the block of docs/INSTALL.md with these words, word for word, in the folder docker/.
follow() {
    block Docker "$1" >"$TRY_DIR/page.sh"
    BLOCKS=$((BLOCKS + 1))
    page bash -exu "$TRY_DIR/page.sh"
    say "docs/INSTALL.md, the lines with '$1'"
}

# A first execution of the page's cluster, or one more; sets ID.
submit_there() {
    # The page made it, in a shell of its own.
    [[ -n ${PAGE_KEY:-} ]] || {
        page docker compose run --rm -T api keys create page --role operator --database
        PAGE_KEY="$(grep -oE '^atk_[A-Za-z0-9_-]+' "$TRY_DIR/page.log" | tail -n1)"
    }
    page docker compose exec -e "ATTUNE_KEY=$PAGE_KEY" api attune submit core.echo -p message=hi --wait --json
    ID="$(grep -oE '"id": ?"?[0-9]+' "$TRY_DIR/page.log" | grep -oE '[0-9]+' | head -n1)"
    [[ -n $ID ]] || die "no id in the answer: $(<"$TRY_DIR/page.log")"
}

# Whether the page's cluster does what it is asked to.
does_work_there() { (submit_there); }

# What docs/INSTALL.md says, by somebody who has a finished program: from nothing to a first execution, a
# backup and its way back, new passwords, and the end of it all.
follow_the_page() {
    local began kept
    began="$(now_ms)"
    mkdir "$TRY_DIR/bin"
    make_context "$TRY_DIR/checkout"
    cat >"$TRY_DIR/bin/docker" <<END
#!/bin/bash
set -euo pipefail
command=\$1 && shift
case "\$command" in
build) buildah bud --layers=false $BUILD_ARGS "\$@" ;;
image) buildah rmi "\${@:2}" ;;
compose)
    # podman-compose makes a terminal for \`exec\`, docker does where there is one.
    [[ \$1 != exec ]] || set -- exec -T "\${@:2}"
    "$ROOT/scripts/containers" compose -f compose.yaml -f compose.podman.yaml "\$@"
    ;;
*) exit 2 ;;
esac
END
    chmod +x "$TRY_DIR/bin/docker"
    block Docker "docker build" >"$TRY_DIR/page.sh"
    BLOCKS=$((BLOCKS + 1))
    # shellcheck disable=SC2016 # expanded by the inner shell
    page bash -exuc 'cd .. && . "$1"' bash "$TRY_DIR/page.sh"
    grep -Eq 'core\.echo *\| *succeeded' "$TRY_DIR/page.log" || {
        tail -n 30 "$TRY_DIR/page.log" >&2
        die "the lines of docs/INSTALL.md show no execution that succeeded"
    }
    say "docs/INSTALL.md, $(($(now_ms) - began)) ms: $(grep -E 'core\.echo *\| *succeeded' "$TRY_DIR/page.log")"

    submit_there
    kept=$ID
    follow "pg_dump"
    submit_there
    follow "pg_restore"
    await 120 "work goes on after the restore" does_work_there
    page docker compose exec -e "ATTUNE_KEY=$PAGE_KEY" api attune executions show "$kept"
    ! (page docker compose exec -e "ATTUNE_KEY=$PAGE_KEY" api attune executions show "$ID") 2>/dev/null ||
        die "execution $ID is younger than the backup, and is there"
    follow "ALTER ROLE"
    await 120 "work goes on with new passwords" does_work_there
    follow "down -v"
    every_block Docker
    [[ ! -e $TRY_DIR/checkout/docker/secrets ]] || die "the passwords are left"
    [[ -z $(podman volume ls --quiet --filter "label=io.podman.compose.project=$PROJECT-page") ]] ||
        die "the end of it all leaves volumes"
}

need_containers
alone build_images
ATTUNE_IMAGE=$IMAGE ATTUNE_WORKER_IMAGE=$WORKER_IMAGE
ATTUNE_POSTGRES_IMAGE="$("$ROOT/scripts/containers" image postgres)"
ATTUNE_RABBITMQ_IMAGE="$("$ROOT/scripts/containers" image rabbitmq)"
ATTUNE_API_PORT="$(free_port)"
ATTUNE_URL="https://127.0.0.1:$ATTUNE_API_PORT"
ATTUNE_CA_FILE="$TRY_DIR/docker/secrets/api_ca.pem"
export ATTUNE_CA_FILE
export ATTUNE_IMAGE ATTUNE_WORKER_IMAGE ATTUNE_POSTGRES_IMAGE ATTUNE_RABBITMQ_IMAGE ATTUNE_API_PORT ATTUNE_URL
mkdir "$TRY_DIR/docker"
cp "$ROOT"/docker/{compose.yaml,compose.podman.yaml,init-postgres,make-secrets} "$TRY_DIR/docker"
follow_the_page
check_secrets
run_cluster
run_single

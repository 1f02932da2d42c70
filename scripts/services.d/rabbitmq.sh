# shellcheck shell=bash
# A private RabbitMQ for scripts/services.

URL_VARIABLE[rabbitmq]=ATTUNE_TEST_AMQP_URL
ACCOUNT[rabbitmq]=rabbitmq

# Debian's rabbitmq-server on the path is a wrapper bound to the system's instance; the plain
# scripts lie beside it.
rabbitmq_binaries() {
    local server=/usr/lib/rabbitmq/bin/rabbitmq-server
    [[ -x $server ]] || server="$(command -v rabbitmq-server)" || return 1
    dirname "$server"
}

rabbitmq_packages() { echo rabbitmq-server; }

# Prints one of the broker's ports by its place: amqp, management, dist, epmd.
rabbitmq_port() {
    local -a ports
    local -A place=([amqp]=0 [management]=1 [dist]=2 [epmd]=3)
    mapfile -t ports <"$DIR/rabbitmq/ports"
    echo "${ports[${place[$1]}]}"
}

rabbitmq_own_url() {
    [[ -s "$DIR/rabbitmq/ports" ]] || return 1
    echo "amqp://$USER_NAME:$(state rabbitmq/password)@127.0.0.1:$(rabbitmq_port amqp)/%2f"
}

# A broker answers the protocol header with the method frame Connection.Start (type 1).
rabbitmq_probe() { [[ "$(speaks "$1" 5672 'AMQP\x00\x00\x09\x01')" == 01 ]]; }

# Fills RABBITMQ_ENVIRONMENT: everything that could lead to files, ports or the cookie of another
# broker on this machine is set.
rabbitmq_environment() {
    local home="$DIR/rabbitmq/home"
    RABBITMQ_ENVIRONMENT=(
        HOME="$home"
        RABBITMQ_NODENAME="$USER_NAME@localhost"
        RABBITMQ_NODE_IP_ADDRESS=127.0.0.1
        RABBITMQ_NODE_PORT="$(rabbitmq_port amqp)"
        RABBITMQ_DIST_PORT="$(rabbitmq_port dist)"
        ERL_EPMD_PORT="$(rabbitmq_port epmd)"
        ERL_EPMD_ADDRESS=127.0.0.1
        # A rabbitmqctl that begins while the broker is being killed would start an epmd that
        # nobody has recorded, and that keeps the port from the next one.
        "ERL_ZFLAGS=-start_epmd false"
        RABBITMQ_CONF_ENV_FILE="$home/none.conf"
        RABBITMQ_CONFIG_FILE="$home/rabbitmq.conf"
        RABBITMQ_ADVANCED_CONFIG_FILE="$home/advanced.config"
        RABBITMQ_ENABLED_PLUGINS_FILE="$home/enabled_plugins"
        RABBITMQ_GENERATED_CONFIG_DIR="$home/generated"
        RABBITMQ_MNESIA_BASE="$home/mnesia"
        RABBITMQ_LOG_BASE="$home/log"
        RABBITMQ_PID_FILE="$home/pid"
        # Binding schedulers to cores hurts where tests and compilers share them.
        RABBITMQ_SCHEDULER_BIND_TYPE=u
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}"
        "RABBITMQ_CTL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}"
        # The start script then becomes the broker instead of waiting for it as its parent.
        RUNNING_UNDER_SYSTEMD=true
    )
}

# The management plug-in serves `vhost`, without its collection of metrics: with that off it costs
# next to nothing, and a virtual host takes milliseconds instead of a start of rabbitmqctl.
rabbitmq_prepare() {
    local home="$DIR/rabbitmq/home" account="${ACCOUNT[rabbitmq]}"
    mkdir -p "$home/mnesia" "$home/log" "$home/generated"
    secret rabbitmq/password
    printf '[rabbitmq_management].\n' >"$home/enabled_plugins"
    (umask 077 && cat >"$home/rabbitmq.conf") <<CONF
listeners.tcp.local = 127.0.0.1:$(rabbitmq_port amqp)
management.tcp.ip = 127.0.0.1
management.tcp.port = $(rabbitmq_port management)
management_agent.disable_metrics_collector = true
default_user = $USER_NAME
default_pass = $(state rabbitmq/password)
default_user_tags.administrator = true
default_permissions.configure = .*
default_permissions.read = .*
default_permissions.write = .*
disk_free_limit.absolute = 200MB
vm_memory_high_watermark.absolute = 1GB
log.file.level = info
CONF
    printf '[{rabbit, [%s]}].\n' "${ATTUNE_SERVICES_RABBITMQ_SETTINGS:-}" >"$home/advanced.config"
    chmod 700 "$home"
    [[ $EUID -ne 0 ]] || chown -R "$account:" "$home"
}

rabbitmq_launch() {
    local account="${ACCOUNT[rabbitmq]}" deadline=$((SECONDS + 10))
    local -a RABBITMQ_ENVIRONMENT
    mkdir -p "$DIR/rabbitmq"
    end rabbitmq/epmd TERM KILL
    keep_or_pick rabbitmq/ports 4
    rabbitmq_prepare
    rabbitmq_environment
    # Raised to what a broker needs, not to the limit of the machine: Erlang sizes tables by it.
    ulimit -Sn 65536 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
    # Started here, because the one Erlang would start by itself outlives the broker unrecorded.
    spawn rabbitmq/epmd "$DIR/rabbitmq/epmd.log" "$account" "${RABBITMQ_ENVIRONMENT[@]}" epmd
    while is_free "$(rabbitmq_port epmd)"; do
        ((SECONDS < deadline)) || die "epmd does not start, see $DIR/rabbitmq/epmd.log"
        sleep 0.05
    done
    spawn rabbitmq/server "$DIR/rabbitmq/server.log" "$account" \
        "${RABBITMQ_ENVIRONMENT[@]}" "$(rabbitmq_binaries)/rabbitmq-server"
}

# A test may have died between stop_app and start_app.
rabbitmq_revive() { rabbitmqctl start_app >&2; }

rabbitmq_stop() {
    end rabbitmq/server TERM KILL
    end rabbitmq/epmd TERM KILL
}

rabbitmq_kill() {
    end rabbitmq/server KILL
    end rabbitmq/epmd KILL
}

rabbitmq_env() {
    printf 'export ATTUNE_TEST_AMQP_URL=%q\n' "$1"
    [[ $1 != "$(rabbitmq_own_url)" ]] || printf 'export ATTUNE_TEST_AMQP_ADMIN_URL=%q\n' \
        "http://$USER_NAME:$(state rabbitmq/password)@127.0.0.1:$(rabbitmq_port management)"
}

rabbitmqctl() {
    local -a RABBITMQ_ENVIRONMENT
    running_pid rabbitmq/server >/dev/null || die "the private RabbitMQ does not run"
    rabbitmq_environment
    run_as "${ACCOUNT[rabbitmq]}" "${RABBITMQ_ENVIRONMENT[@]}" "$(rabbitmq_binaries)/rabbitmqctl" "$@"
    if [[ ${1:-} == add_vhost && $# -ge 2 ]]; then
        run_as "${ACCOUNT[rabbitmq]}" "${RABBITMQ_ENVIRONMENT[@]}" \
            "$(rabbitmq_binaries)/rabbitmqctl" set_permissions -p "$2" "$USER_NAME" '.*' '.*' '.*'
    fi
}

# vhost add|delete NAME. Whoever creates a virtual host over HTTP is given all permissions on it.
vhost() {
    local method status login
    case "${1:-}" in
    add) method=PUT ;;
    delete) method=DELETE ;;
    *) die "vhost takes: add NAME, delete NAME" ;;
    esac
    [[ ${2:-} =~ ^[A-Za-z0-9._-]+$ ]] || die "a virtual host is named by letters, digits, . _ and -"
    running_pid rabbitmq/server >/dev/null || die "the private RabbitMQ does not run"
    login="$(printf '%s:%s' "$USER_NAME" "$(state rabbitmq/password)" | base64 -w0)"
    exec 3<>"/dev/tcp/127.0.0.1/$(rabbitmq_port management)"
    printf '%s /api/vhosts/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic %s\r\n%s\r\n\r\n' \
        "$method" "$2" "$login" $'Connection: close\r\nContent-Length: 0' >&3
    read -r -t 60 _ status _ <&3 || die "RabbitMQ's HTTP interface gives no answer"
    exec 3>&-
    [[ $status == 20[0-9] ]] || die "RabbitMQ answered $status to $1 of virtual host $2"
}

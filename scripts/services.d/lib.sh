# shellcheck shell=bash
# What every service of scripts/services needs: recorded processes, ports, probes, packages.
# DIR is the directory of the private instances.

# --- processes ------------------------------------------------------------------------------

# When process $1 started, in clock ticks since boot: tells a recorded process from a later one
# that was given the same id. Nothing for a process that has ended, a zombie included.
started_at() {
    local stat fields
    { stat="$(<"/proc/$1/stat")"; } 2>/dev/null || return 1
    # The second field is the command in parentheses and may hold blanks.
    read -r -a fields <<<"${stat##*) }"
    [[ ${fields[0]} != Z ]] || return 1
    printf '%s' "${fields[19]}"
}

# Prints the id of the process recorded as $1 if that very process still runs.
running_pid() {
    local pid ticks
    read -r pid ticks <<<"$(state "$1.pid")" || return 1
    [[ -n $pid && -n $ticks && "$(started_at "$pid")" == "$ticks" ]] || return 1
    printf '%s' "$pid"
}

# spawn RECORD LOG ACCOUNT COMMAND...: starts a daemon in a session of its own with a clean
# environment and records it. Every step replaces the one before, so the id is the daemon's own.
spawn() {
    local record=$1 log=$2 account=$3 pid
    shift 3
    local -a drop=()
    [[ $EUID -ne 0 ]] || drop=(setpriv "--reuid=$account" "--regid=$account" --init-groups --)
    setsid "${drop[@]}" env -i PATH="$PATH" LANG=C.UTF-8 "$@" </dev/null >>"$log" 2>&1 9>&- &
    pid=$!
    disown
    printf '%s %s\n' "$pid" "$(started_at "$pid")" >"$DIR/$record.pid"
}

# Runs a command as the account of a service, with a clean environment.
run_as() {
    local account=$1
    shift
    local -a drop=()
    [[ $EUID -ne 0 ]] || drop=(setpriv "--reuid=$account" "--regid=$account" --init-groups --)
    "${drop[@]}" env -i PATH="$PATH" LANG=C.UTF-8 "$@" 9>&-
}

# end RECORD SIGNAL...: sends each signal in turn until the recorded process has ended.
end() {
    local record=$1 pid signal deadline
    shift
    for signal in "$@"; do
        pid="$(running_pid "$record")" || break
        kill "-$signal" "$pid" 2>/dev/null || true
        deadline=$((SECONDS + STOP_DEADLINE))
        while running_pid "$record" >/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
    done
    ! running_pid "$record" >/dev/null || die "$record (process $pid) does not end"
    rm -f "$DIR/$record.pid"
}

# --- ports ----------------------------------------------------------------------------------

# Prints $1 different free ports. They lie below 32768: above, the kernel hands ports out for
# outgoing connections, and one of those could sit on a service's port when it restarts.
free_ports() {
    local wanted=$1 port taken
    local -A chosen=()
    taken=" $(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '{n = split($2, a, ":"); printf "%s ", a[n]}')"
    while ((${#chosen[@]} < wanted)); do
        port=$((15000 + RANDOM % 17000))
        [[ $taken != *" $(printf '%04X' "$port") "* ]] || continue
        chosen[$port]=1
    done
    printf '%s\n' "${!chosen[@]}"
}

# True when nothing listens on port $1 of loopback.
is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# keep_or_pick FILE COUNT: makes FILE hold COUNT free ports; those of the last start are kept when
# they are still free, so that URLs survive a restart. With KEEP_PORTS they are kept in any case: it
# waits until they are free, or fails.
keep_or_pick() {
    local port taken tries=0
    while [[ -s "$DIR/$1" ]]; do
        taken=""
        while read -r port; do is_free "$port" || taken=$port; done <"$DIR/$1"
        if [[ -z $taken ]]; then return; fi
        if [[ -z ${KEEP_PORTS:-} ]]; then
            say "port $taken of the last start is taken by now; the URL changes"
            break
        fi
        # Whoever began with this server would look for it in vain at another port.
        ((tries++ < 150)) || die "port $taken is taken by somebody else; end that first"
        sleep 0.2
    done
    free_ports "$2" >"$DIR/$1"
}

# secret FILE: makes FILE hold a password, readable by this user only.
secret() {
    [[ ! -s "$DIR/$1" ]] || return 0
    (umask 077 && od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$DIR/$1")
}

# speaks URL DEFAULT_PORT REQUEST: sends REQUEST (printf format) to the URL's host and port and
# prints the first byte of the answer, in hexadecimal. Fails when nobody answers within 3 s.
speaks() {
    local host port
    [[ $1 =~ ^[a-z+]+://([^@/]*@)?(\[[^]]+\]|[^:/?]+)(:([0-9]+))? ]] || return 1
    host="${BASH_REMATCH[2]}" port="${BASH_REMATCH[4]:-$2}"
    host="${host#[}" host="${host%]}"
    # shellcheck disable=SC2016 # expanded by the inner shell
    timeout 3 bash -c 'exec 3<>"/dev/tcp/$1/$2" && printf "$3" >&3 && head -c1 <&3 | od -An -tx1' \
        probe "$host" "$port" "$3" 2>/dev/null | tr -d ' \n' | grep .
}

# --- packages -------------------------------------------------------------------------------

# Runs a command while package scripts are kept from starting the services they install.
without_autostart() (
    policy=/usr/sbin/policy-rc.d
    mark='# Stands here only while scripts/services of Attune installs packages.'
    code=0
    restore() {
        ! grep -qsF "$mark" "$policy" || rm -f "$policy"
        [[ ! -e $policy.attune ]] || mv "$policy.attune" "$policy"
    }
    # What an install that was cut off may have left.
    restore
    if [[ -x $policy ]]; then "$policy" rabbitmq-server start >/dev/null 2>&1 || code=$?; fi
    # 101 is "no": the administrator's own policy suffices.
    if ((code != 101)); then
        trap restore EXIT
        trap 'exit 130' INT TERM HUP
        [[ ! -e $policy ]] || mv "$policy" "$policy.attune"
        # Tested, because errexit is off in a function whose failure the caller handles.
        install -m 755 /dev/stdin "$policy" <<<"#!/bin/sh"$'\n'"$mark"$'\n'"exit 101" || exit 1
    fi
    "$@"
)

apt() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >&2 9>&- </dev/null; }

install_packages() {
    (($#)) || die "install takes the names of packages"
    command -v apt-get >/dev/null ||
        die "there is no apt-get to install $* with; install them yourself"
    [[ $EUID -eq 0 ]] || die "not root, so run first: sudo apt-get install --no-install-recommends $*"
    say "installing $*"
    apt update -q || say "apt-get update failed; trying with the lists that are there"
    without_autostart apt install -q -y --no-install-recommends "$@" || die "cannot install $*"
}

# Installs the packages of the given services unless their programs are there.
install_missing() {
    local name
    local -a packages=()
    for name in "$@"; do
        "${name}_binaries" >/dev/null || packages+=("$("${name}_packages")")
    done
    ((${#packages[@]})) || return 0
    say "missing: ${packages[*]} (a server of your own is used when ${URL_VARIABLE[*]} name it)"
    install_packages "${packages[@]}"
    for name in "$@"; do
        "${name}_binaries" >/dev/null || die "the programs of $name are missing after installing them"
    done
}

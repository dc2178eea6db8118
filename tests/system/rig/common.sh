# Sourced by the system tests (tests/system/run_*). Gives: the paths, x HOST COMMAND, check, and
# helpers around a VM. Each test runs itself again inside `two_hosts run`, so that the rig goes away
# whatever happens.
set -euo pipefail
system=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=$(cd "$system/../.." && pwd)
build=${GANTRY_BUILD:-$root/build/release}
bin=$build/bin
RIG_DIR=${RIG_DIR:-$root/build/rig}
GANTRY_BUILD=$build
export RIG_DIR GANTRY_BUILD
checks=0 failures=0

# As grep -q, but it reads to the end: with pipefail, a writer that finds nobody reading any more
# would count as a failure.
matches() { grep "$@" >/dev/null; }
x() { "$system/two_hosts" x "$@"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
say() { printf '%s\n' "$*"; }

# Deadlines are written for an idle machine of two cores; a busy one gets this many times as long.
# They bound a hang and decide nothing else: every wait ends as soon as what it waits for is there.
patience=${GANTRY_PATIENCE:-4}

eventually() { # SECONDS COMMAND...: repeats it until it succeeds; false when it is too late
    local deadline=$(($(date +%s) + $1 * patience))
    shift
    until "$@"; do
        [ "$(date +%s)" -le "$deadline" ] || return 1
        sleep 0.1
    done
}
check() { # WHAT COMMAND...
    local what=$1
    shift
    checks=$((checks + 1))
    if ! "$@"; then
        failures=$((failures + 1))
        printf 'FAILED: %s (%s)\n' "$what" "$(date +%T)" >&2
    fi
}
# For what is about to become true: the command's own words are shown only when it never does.
check_soon() { # WHAT SECONDS COMMAND...
    local what=$1 seconds=$2
    shift 2
    if eventually "$seconds" "$@" >/dev/null 2>&1; then
        checks=$((checks + 1))
    else
        check "$what (within $((seconds * patience)) s)" "$@"
    fi
}
title() { # CASE: the time shows where it goes
    printf '%s (%s s)\n' "$*" "$(($(date +%s) - begun))"
}
begun=$(date +%s)
finish() {
    local repeated=0
    if [ -e "$RIG_DIR/begun_again" ]; then
        repeated=$(wc -l <"$RIG_DIR/begun_again")
        say "REPEATED: $repeated moves: libvirt failed without a cause, and virsh was called" \
            "again, at: $(tr '\n' ' ' <"$RIG_DIR/begun_again")"
    fi
    printf '%s: %s checks, %s failed, %s moves repeated\n' "$(basename "$0")" "$checks" \
        "$failures" "$repeated"
    [ "$failures" = 0 ]
}
in_rig() { # HOST_COUNT: returns inside the rig only
    if [ "${IN_RIG:-}" = yes ]; then
        trap 'at_exit $?' EXIT
        return
    fi
    IN_RIG=yes exec "$system/two_hosts" run "$1" -- "$0"
}
# What the hosts' daemons wrote last, for who has nothing but a failed test's output.
tell_logs() {
    local log
    for log in "$RIG_DIR"/host?/{log/libvirtd.log,gantry/log/gantryd.log,log/qemu/*.log}; do
        [ -s "$log" ] || continue
        say "-- the end of ${log#"$RIG_DIR"/} ($(date +%T) now):"
        grep -v cgroup -i "$log" | tail -n 15 | cut -c 1-240 || true
    done
}
at_exit() { # STATUS
    if [ -n "${userfaultfd_before:-}" ]; then echo "$userfaultfd_before" >"$userfaultfd"; fi
    if [ "$1" != 0 ]; then tell_logs; fi
}
now_us() { awk '{ printf "%.0f\n", $1 * 1e6 }' /proc/uptime; }   # 10 ms steps
console() { cat "$RIG_DIR/$1/log/$2-console.log" 2>/dev/null | tr -d '\r' || true; }
wait_console() { # HOST VM PATTERN SECONDS
    prints() { console "$1" "$2" | matches -- "$3"; }
    if ! eventually "$4" prints "$1" "$2" "$3"; then
        console "$1" "$2" | tail -n 20 >&2
        fail "$2 on $1 did not print '$3' within $(($4 * patience)) s; its last lines are above"
    fi
}
start_vm() { # HOST VM INDEX OPTIONS... (of domain_xml)
    local host=$1 name=$2
    shift 2
    "$system/domain_xml" "$name" "$@" >"$RIG_DIR/$name.xml"
    x "$host" virsh -q define "$RIG_DIR/$name.xml" >/dev/null
    x "$host" virsh -q start "$name" >/dev/null
}
# A hang ends as a failure. Once in the thousands of moves of these tests libvirt 9.0 refused one
# before the target had a VM, and could not say why ("the cause is unknown", which a hook's refusal
# never is). As an operator would, the same command is given again then, once. The test's last lines
# say how often, and so do those of scripts/test (scripts/dev/junit_counts).
migrate() { # FROM TO VM OPTIONS...
    local from=$1 to=$2 name=$3 words=$RIG_DIR/virsh.$BASHPID last status
    shift 3
    for last in no yes; do
        status=0
        x "$from" timeout $((60 * patience)) virsh -q migrate --live "$@" "$name" \
            "qemu+tcp://$to/system" 2>"$words" || status=$?
        cat "$words" >&2
        if [ $last = yes ] || ! matches 'occurred, but the cause is unknown' "$words"; then
            return $status
        fi
        date +%T >>"$RIG_DIR/begun_again"
        tell_logs >&2
    done
}
fails() { ! "$@" >"$RIG_DIR/virsh.out" 2>&1; }
succeeds() { "$@" >"$RIG_DIR/virsh.out" 2>&1 || { cat "$RIG_DIR/virsh.out" >&2; return 1; }; }
says() { grep -q -- "$1" "$RIG_DIR/virsh.out"; }
virsh_says() { say "virsh: $(grep -o 'error: .*' "$RIG_DIR/virsh.out" | cut -c 1-160)"; }
# g1 moves in the background; `pid` is the shell that calls virsh.
begin_move() { # FROM TO OPTIONS...
    migrate "$1" "$2" g1 "${@:3}" >"$RIG_DIR/virsh.out" 2>&1 &
    pid=$!
}
move_fails() { ! wait "$pid"; }
move_succeeds() { wait "$pid" || { cat "$RIG_DIR/virsh.out" >&2; return 1; }; }
# At the target from when the VM's own memory is being copied: QEMU is up there.
has_vm() { x "$1" virsh -q list --name | matches -x g1; }
# --postcopy needs this of the kernel; libvirt's package sets it on real hosts.
userfaultfd=/proc/sys/vm/unprivileged_userfaultfd
allow_postcopy() {
    userfaultfd_before=$(cat "$userfaultfd")
    echo 1 >"$userfaultfd"
}
copy_kernel() {
    local kernel=${GANTRY_KERNEL_DIR:-$root/build/cache/kernel}
    cp "$kernel"/root/boot/vmlinuz-* "$RIG_DIR/vmlinuz"
    "$system/two_hosts" copy "$RIG_DIR/vmlinuz"
}
# A program on a host, in the background, until stop_on ends it by its id.
start_on() { # HOST NAME OUTPUT COMMAND...
    local host=$1 name=$2 output=$3
    shift 3
    x "$host" sh -c 'echo $$ >"/run/rig-$0.pid"; exec "$@"' "$name" "$@" </dev/null \
        >"$output" 2>"$output.err" &
    disown
}
stop_on() { # HOST NAME
    x "$1" sh -c 'pid=$(cat "/run/rig-$0.pid"); kill "$pid" 2>/dev/null || exit 0; n=0
        while kill -0 "$pid" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.05; n=$((n + 1)); done' "$2"
}

# What libvirt_watch wrote: "KIND" or "migration_status:STATUS" per line, from line FROM on.
events() { # FILE [FROM]
    python3 -c '
import json, sys
for line in open(sys.argv[1]).readlines()[int(sys.argv[2]) - 1:]:
    e = json.loads(line)
    print(e["kind"] + (":" + e["status"] if "status" in e else ""))' "$1" "${2:-1}"
}
in_order() { # FILE[:FROM] PATTERN...: each occurs after the one before; !PATTERN: nowhere
    local file=${1%%:*} from=1
    if [ "$file" != "$1" ]; then from=${1##*:}; fi
    shift
    events "$file" "$from" | python3 -c '
import sys
lines = [l.strip() for l in sys.stdin]
at = 0
for want in sys.argv[1:]:
    if want.startswith("!"):
        if want[1:] in lines:
            sys.exit(f"{want[1:]} should not be among: " + " ".join(lines))
        continue
    try:
        at = lines.index(want, at) + 1
    except ValueError:
        sys.exit(f"no {want} (in this order) among: " + " ".join(lines))' "$@"
}
next_line() { echo $(($(wc -l <"$1") + 1)); }
has_event() { events "$1" "$2" | matches -x -- "$3"; }     # FILE FROM KIND
wait_event() { # FILE FROM KIND SECONDS
    eventually "$4" has_event "$1" "$2" "$3" || fail "no $3 in $1 within $(($4 * patience)) s"
}

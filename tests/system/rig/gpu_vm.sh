# Sourced after common.sh by the tests and the demonstration that move a VM with a CUDA program
# (g1, tests/system/demo_walk.cu) between hosts. Another program may be named after this.
program=$build/programs/demo_walk
marks_port=7777 stop_port=7778

need_program() {
    [ -x "$program" ] ||
        fail "no $program: this needs nvcc (a CUDA 13 toolkit in /usr/local/cuda)"
}
# Kernel, image with the program under the shim, gantryd on every host, the VM on hosta. With
# vm_key set, the VM has no shared memory: its program is over TCP, and a relay is on every host.
# With beside set, that program runs again and again beside the other, and nvidia-smi in between.
# image_options and vm_options are further options of guest_image and domain_xml, and
# program_arguments those of a program that is not demo_walk; each program needs 64 of shared_mib.
image_options=() vm_options=() program_arguments=() shared_mib=64
start_gpu_vm() { # SEGMENT_MIB PAUSE_MS GPU_MEMORY_MIB HOST...
    local segment_mib=$1 pause_ms=$2 gpu_memory=$3
    shift 3
    local over_tcp=() with_beside=()
    if [ -n "${beside:-}" ]; then
        with_beside=(--beside "$beside" --smi "$nvidia_smi")
        shared_mib=128                                  # A channel for each of the two.
    fi
    if [ ${#program_arguments[@]} = 0 ]; then
        program_arguments=(1000000 "$segment_mib" "$pause_ms")
    fi
    local argument arguments=()
    for argument in "${program_arguments[@]}"; do arguments+=(--argument "$argument"); done
    copy_kernel
    if [ -n "${vm_key:-}" ]; then over_tcp=(--guest "$bin/gantry-guest"); fi
    "$system/guest_image" "${over_tcp[@]}" "${with_beside[@]}" \
        --out "$RIG_DIR/guest.cpio" --program "$program" \
        "${arguments[@]}" "${image_options[@]}" \
        --shim "$build/shim/libcuda.so.1" \
        --env "DEMO_MARKS=169.254.77.1:$marks_port" --probe "$bin/pause_probe" --on-exit stay
    "$system/two_hosts" copy "$RIG_DIR/guest.cpio"
    "$system/two_hosts" gantryd start "$@"
    if [ -n "${vm_key:-}" ]; then
        for host in "$@"; do start_relay "$host"; done
        start_vm hosta g1 1 --network --tcp "$vm_key" --gpu-memory "$gpu_memory" \
            "${vm_options[@]}"
    else
        start_vm hosta g1 1 --network --shared "$shared_mib" --gpu-memory "$gpu_memory" \
            "${vm_options[@]}"
    fi
    wait_console hosta g1 '^step 3 \|^guest: the program ended' 120
    if ! console hosta g1 | matches '^step 3 '; then
        console hosta g1 | tail -n 20 >&2
        fail "the program ended at once; its last lines are above"
    fi
}

# The address is the same on every host, so that the VM finds the one where it is.
start_relay() { # HOST
    start_on "$1" relay "$RIG_DIR/$1/log/relay.txt" gantry-relay --listen 169.254.77.1:7760
    eventually 10 grep -q listening "$RIG_DIR/$1/log/relay.txt" ||
        fail "no gantry-relay on $1: $(cat "$RIG_DIR/$1/log/relay.txt.err")"
}

last_step() { # HOST: 0 when none was printed there
    local last
    last=$(console "$1" g1 | sed -n 's/^step \([0-9]*\) .*/\1/p' | tail -n 1)
    echo "${last:-0}"
}
newest_step() { # Anywhere
    local at_a at_b
    at_a=$(last_step hosta) at_b=$(last_step hostb)
    echo $((at_a > at_b ? at_a : at_b))
}
is_beyond() { [ "$(last_step "$1")" -gt "$2" ]; }       # HOST STEP
goes_on() { # HOST: two more steps there than anywhere now
    eventually 60 is_beyond "$1" $(($(newest_step) + 2))
}
has_ended() { console "$1" g1 | matches 'the program ended with status'; }

running_at() { x "$1" virsh domstate g1 2>/dev/null | matches -x running; }
# QEMU copies its memory, and there is much left: a VM that is paused now was not for the end.
copies_memory() { # HOST
    x "$1" virsh domjobinfo g1 2>/dev/null | matches 'Memory remaining: .* MiB'
}
paused_in_mid_move() { # HOST
    x "$1" virsh domstate g1 2>/dev/null | matches -x paused && copies_memory "$1"
}

states_of() { # HOST: the states of g1 that its gantryd tells, one a line
    x "$1" gantry --json status | python3 -c '
import json, sys
for session in json.load(sys.stdin)["sessions"]:
    if session["vm_name"] == "g1":
        print(session["state"])'
}
serves() { [ "$(states_of "$1")" = running ]; }
serves_not() { ! states_of "$1" | matches -x running; }
# That gantryd serves the session, and no other does.
check_owner() { # WHAT OWNER OTHER...
    local what=$1 owner=$2 host
    shift 2
    check_soon "$what: served at $owner" 30 serves "$owner"
    for host in "$@"; do
        check "$what: not served at $host" serves_not "$host"
    done
}

# `gantry watch` on both sides of a move, and what they wrote afterwards.
watch_file() { echo "$RIG_DIR/watch-$1-$2.json"; }      # MOVE HOST
start_watch() { # MOVE HOST...
    local move=$1 host
    shift
    for host in "$@"; do
        start_on "$host" "watch-$move" "$(watch_file "$move" "$host")" \
            gantry --json watch g1 --wait
    done
    for host in "$@"; do        # A VM that is there is told of at once.
        [ "$host" != "${1}" ] || eventually 10 test -s "$(watch_file "$move" "$host")" ||
            fail "gantry watch on $host says nothing"
    done
}
watch_ended() { # MOVE HOST: it ends by itself with the move
    ! x "$2" sh -c 'kill -0 "$(cat "/run/rig-watch-$0.pid")" 2>/dev/null' "$1"
}
check_watch() { # WHAT MOVE OUTCOME FROM TO: told rightly on both sides
    local host
    for host in "$4" "$5"; do
        check_soon "$1: gantry watch on $host ends with the move" 30 watch_ended "$2" "$host"
    done
    check "$1: what gantry watch told" "$system/rig/check_watch" "$3" \
        "$(watch_file "$2" "$4")" "$(watch_file "$2" "$5")"
}

# Ends the program after the step at hand; a datagram may be lost while the VM is busy.
stop_program() { # HOST
    told_to_stop() {
        x "$1" bash -c "echo stop >/dev/udp/169.254.77.10/$stop_port"
        has_ended "$1"
    }
    eventually 60 told_to_stop "$1"
}
# The digests of both hosts' consoles against a run that never moved, on a soft GPU of that kind.
compare_digests() { # STEPS SEGMENT_MIB PROFILE [yes: the program died, and printed no last one]
    LD_LIBRARY_PATH=$build/soft GANTRY_SOFT_PROFILE=$root/host-daemon/softgpu/profiles/$3.toml \
        "$program" "$1" "$2" >"$RIG_DIR/reference" ||
        fail "the reference run failed: $(tail -n 1 "$RIG_DIR/reference")"
    if [ "${4:-no}" = yes ]; then sed -i '/^all memory/d' "$RIG_DIR/reference"; fi
    "$system/rig/compare_digests" "$RIG_DIR/reference" "$RIG_DIR"/host[ab]/log/g1-console.log
}

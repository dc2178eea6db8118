# Sourced after gpu_vm.sh by what shows moves of g1 and not only checks them: scripts/demo, and
# tests/gpu/vm on GPUs. Gives: move FROM TO, and show_moves for the table of all of them.
windows=() wires=() timelines=() names=() watches=()

# What the VM's marks arrive at; pause_report reads the files.
start_sinks() {
    local host
    for host in hosta hostb; do
        start_on "$host" sink "$RIG_DIR/$host.sink" \
            "$bin/pause_sink" 169.254.77.1 "$RIG_DIR/$host.marks"
    done
}
stop_sinks() {
    local host
    for host in hosta hostb; do stop_on "$host" sink; done
}
wait_step() { # HOST STEP: until a step beyond that was printed there
    eventually 60 is_beyond "$1" "$2" || fail "the program on $1 hangs at step $(last_step "$1")"
}
sent_bytes() { x "$1" cat /sys/class/net/mig0/statistics/tx_bytes; }
# The move's records of both hosts, as a picture and as a page.
has_both_records() { x "$1" gantry --json timeline g1 | matches '"peer"'; }
write_timeline() { # HOST FILE
    eventually 20 has_both_records "$1" || fail "$1 has not both hosts' record of the move"
    x "$1" gantry timeline g1 --svg "$2.svg" --html "$2.html" || fail "no timeline"
    timelines+=("$2")
}
move() { # FROM TO
    local from=$1 to=$2 begin before host
    start_watch "$from-$to" "$from" "$to"
    say "$from# virsh migrate --live g1 qemu+tcp://$to/system"
    before=$(sent_bytes "$from")
    begin=$(now_us)
    x "$from" virsh migrate --live g1 "qemu+tcp://$to/system" | sed '/^$/d'
    windows+=("$begin:$(now_us)")
    wait_step "$to" "$(($(last_step "$from") + 3))"
    say "step $(last_step "$from") was printed on $from, step $(last_step "$to") on $to"
    for host in "$from" "$to"; do
        check_soon "gantry watch on $host ended with the move" 30 watch_ended "$from-$to" "$host"
    done
    wires+=($(($(sent_bytes "$from") - before)))
    names+=("${from: -1} -> ${to: -1}")
    watches+=("$(watch_file "$from-$to" "$from"),$(watch_file "$from-$to" "$to")")
    write_timeline "$to" "$RIG_DIR/timeline-$from-$to"
}
# The table, and the checks of what it says.
show_moves() {
    local i columns=()
    "$system/pause_report" "${windows[@]}" -- "$RIG_DIR"/host?.marks >"$RIG_DIR/pauses"
    for i in "${!names[@]}"; do columns+=("${names[i]^^}=${watches[i]},${wires[i]}"); done
    check "every figure was measured, no GPU call was lost or done twice, the digests are equal" \
        "$system/rig/move_table" "$RIG_DIR/pauses" "${columns[@]}"
    for i in "${!names[@]}"; do
        check "${names[i]^^}: what gantry watch told" \
            "$system/rig/check_watch" moved ${watches[i]//,/ }
    done
}

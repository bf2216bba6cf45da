# Sets up a memory control group and swap space, prints `ready`, and removes both when its standard
# input ends: the process that started it needs them no longer, or was killed.
#   sh memory_group.sh none|zram|file GROUP SWAP-FILE SWAP-BYTES LOCK-FILE
# Output without `ready` is the reason why this machine cannot.
trap '' HUP INT TERM PIPE
PATH=$PATH:/usr/sbin:/sbin
kind=$1 group=$2 file=$3 bytes=$4 number='' swap=
exec 2>&1 9< "$5" || exit

add_zram() {
    [ -e /sys/class/zram-control ] || modprobe zram || return
    number=$(cat /sys/class/zram-control/hot_add) || return
    swap=/dev/zram$number
    echo lz4 > "/sys/block/zram$number/comp_algorithm" && echo "$bytes" > "/sys/block/zram$number/disksize"
}

add_file() {
    swap=$file
    : > "$file" && chmod 600 "$file" && fallocate -l "$bytes" "$file"
}

set_up() {
    # Swap space serves all programs, so only one such group exists on a machine.
    flock 9 && mkdir "$group" || return
    case $kind in
    none) return 0 ;;
    zram) add_zram || return ;;
    file) add_file || return ;;
    esac
    mkswap "$swap" > /dev/null && swapon -p 32767 "$swap"
}

is_on() { grep -q "^$1[[:space:]]" /proc/swaps; }

# Fails without processes.
kill_all() { pids=$(cat "$group/cgroup.procs") && [ -n "$pids" ] && kill -9 $pids; }

# Each step is repeated until it is done: a killed process leaves its group some time later, and one that
# starts just now may still enter it.
tear_down() {
    while kill_all; do sleep 0.02; done
    while [ -n "$swap" ] && is_on "$swap"; do swapoff "$swap" || sleep 0.1; done
    while [ -n "$number" ] && [ -e "/sys/block/zram$number" ]; do
        echo 1 > "/sys/block/zram$number/reset" && echo "$number" > /sys/class/zram-control/hot_remove || sleep 0.1
    done
    rm -f "$file"
    while [ -e "$group" ]; do kill_all; rmdir "$group" || sleep 0.02; done
}

if set_up; then
    echo ready
    read -r end
fi
tear_down 2> /dev/null

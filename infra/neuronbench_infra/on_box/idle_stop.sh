#!/bin/bash
# Started every minute by a timer: shuts this box down when nobody has used it for a while, or when its time is over.
#
# In use means any of: a process on the NeuronCores, a session or command of SSM, a unit called neuronbench-*, and since
# the last look half a core busy or a mebibyte a second over the network. What cannot be told counts as not in use: a box that never stops is the worse mistake.
# Its time is over at the instant in its own tag `neuronbench:expires` (read anew each time, so it can be moved), or,
# without that tag, after so many hours up.
#
# Wanted from the environment: NEURONBENCH_IDLE_STOP_MIN, NEURONBENCH_MAX_HOURS. For tests: NEURONBENCH_STATE (a folder),
# NEURONBENCH_PROC (/proc), NEURONBENCH_IMDS (a URL).
set -u

state=${NEURONBENCH_STATE:-/run/nb-idle-stop}
proc=${NEURONBENCH_PROC:-/proc}
imds=${NEURONBENCH_IMDS:-http://169.254.169.254}
idle_min=${NEURONBENCH_IDLE_STOP_MIN:?minutes}
max_hours=${NEURONBENCH_MAX_HOURS:?hours}
mkdir -p "$state"

say() { logger -t nb-idle-stop -- "$1" 2>/dev/null || echo "nb-idle-stop: $1"; }

end() {
    say "$1"
    sync
    exec shutdown -h now "neuronbench: $1"
}

uptime_s() { cut -d. -f1 < "$proc/uptime"; }

# -- is its time over? -------------------------------------------------------------------------------------------------

tag() {
    local token
    token=$(curl -sf -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$imds/latest/api/token") || return 1
    curl -sf -m 2 -H "X-aws-ec2-metadata-token: $token" "$imds/latest/meta-data/tags/instance/$1"
}

now=$(date -u +%s)
up=$(uptime_s)
# What was read last counts while the tag cannot be read: a moment without answers must not end a run of days.
if found=$(tag neuronbench:expires) && end_s=$(date -u -d "$found" +%s 2>/dev/null); then
    echo "$end_s" > "$state/expires"
fi
if end_s=$(cat "$state/expires" 2>/dev/null); then
    if [ "$now" -ge "$end_s" ]; then
        end "expired at $(date -u -d "@$end_s" +%Y-%m-%dT%H:%M:%SZ)"
    fi
elif [ "$up" -ge $((max_hours * 3600)) ]; then
    end "up for $max_hours hours, and no tag neuronbench:expires says that it may be longer"
fi

# -- is it in use? -----------------------------------------------------------------------------------------------------

on_cores() {
    local neuron_ls
    neuron_ls=$(command -v neuron-ls || echo /opt/aws/neuron/bin/neuron-ls)
    timeout 20 "$neuron_ls" -j 2>/dev/null | grep -q '"pid"[[:space:]]*:[[:space:]]*[0-9]'
}

in_session() { pgrep -f '(^|/)ssm-(session|document)-worker( |$)' > /dev/null 2>&1; }

in_unit() {
    local units
    units=$(systemctl list-units --plain --no-legend --state=active,activating,deactivating,reloading 'neuronbench-*' 2>/dev/null)
    [ -n "$units" ]
}

# Busy hundredths of a second of all cores since boot: user, nice, system, irq, softirq, steal; not idle, not iowait.
# (USER_HZ is 100 on every Linux that EC2 runs. "%.0f": Ubuntu's awk writes 2^31 and more as 2.14748e+09, and 192 cores
# get there in 31 hours.)
busy_ticks() { awk '/^cpu /{printf "%.0f", $2 + $3 + $4 + $7 + $8 + $9; exit}' "$proc/stat"; }

computing() {
    local ticks before_ticks before_up
    ticks=$(busy_ticks)
    read -r before_ticks before_up 2> /dev/null < "$state/cpu" || { before_ticks=$ticks before_up=$up; }
    echo "$ticks $up" > "$state/cpu"
    [ "$up" -gt "$before_up" ] && [ $(((ticks - before_ticks) * 2)) -ge $(((up - before_up) * 100)) ]
}

# Bytes in and out of all interfaces but the loopback: weights that come or caches that go need hardly any core.
moving() {
    local bytes before_bytes before_up
    bytes=$(awk 'NR > 2 {sub(/:/, " "); if ($1 != "lo") sum += $2 + $10} END {printf "%.0f", sum}' "$proc/net/dev" 2> /dev/null)
    bytes=${bytes:-0}
    read -r before_bytes before_up 2> /dev/null < "$state/net" || { before_bytes=$bytes before_up=$up; }
    echo "$bytes $up" > "$state/net"
    [ "$up" -gt "$before_up" ] && [ $((bytes - before_bytes)) -ge $(((up - before_up) * 1048576)) ]
}

reason=
# These two first: they always note what they saw.
moving && reason="a mebibyte a second or more goes over the network"
computing && reason="half a core or more is busy"
if in_unit; then
    reason="a benchmark's unit is running"
elif on_cores; then
    reason="a process is on the NeuronCores"
elif in_session; then
    reason="a session or command of SSM is open"
fi

if [ -n "$reason" ]; then
    rm -f "$state/since"
    echo "$reason" > "$state/reason"
    exit 0
fi
echo "idle" > "$state/reason"
[ -s "$state/since" ] || echo "$up" > "$state/since"
since=$(cat "$state/since")
if [ $((up - since)) -ge $((idle_min * 60)) ]; then
    end "idle for $(((up - since) / 60)) minutes"
fi

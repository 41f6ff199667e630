#!/bin/sh
# Ends a run of neuronbench on this box, in order; the box stays. `neuronbench fleet stop --run` fills in the names
# between @ and sends it through SSM; sent twice it does nothing twice.
# Ends with 82 (this box has never heard of the run), 83 (it was never started here).
set -eu
umask 022
export PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
root=${NEURONBENCH_BOX_ROOT:-}
run='@RUN@'
unit="neuronbench-run-$run.service"
state="$root/var/lib/neuronbench/$run"

say() { echo "neuronbench: $*"; }
stop() { say "$2" >&2; exit "$1"; }

[ -d "$state" ] || stop 82 "there is no run $run on this box"
if [ -e "$state/done.json" ]; then
    say "run $run is over on this box"
    exit 0
fi
if [ ! -e "$state/cancel.json" ]; then # whose word came first stays
    printf '%s' '@WORDS@' | base64 -d >"$state/.cancel.$$"
    mv "$state/.cancel.$$" "$state/cancel.json"
fi
sync
if [ ! -e "$root/etc/systemd/system/$unit" ]; then
    mkdir -p "$root/opt/neuronbench"
    ! flock -n "$root/opt/neuronbench/.lock" true || stop 83 "run $run was never started on this box"
    say "run $run is still being set up: it ends as soon as that is done"
    exit 0
fi
# its agent looks for the file; one that has failed for good is started once more, and sends what there is
systemctl reset-failed "$unit" 2>/dev/null || true
systemctl start "$unit"
say "run $run is asked to end ($unit)"

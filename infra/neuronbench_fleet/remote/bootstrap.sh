#!/bin/sh
# Sets up a run of neuronbench on this box. `neuronbench fleet run` fills in the names between @ and sends it through
# SSM; sent twice it does nothing twice. It needs curl, tar, sha256sum, flock and systemd, which every image has.
# Ends with 80 (no systemd), 81 (another run is on its way here), 86 (the disk is full), 87 (the code cannot be set up),
# 88 (wrong hash), 89 (the code cannot be had).
set -eu
umask 022
# Run Command sets neither on some images, and git, pip and other tools want them
export HOME="${HOME:-/root}" LANG="${LANG:-C.UTF-8}" PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
root=${NEURONBENCH_BOX_ROOT:-}
run='@RUN@'
sha='@SHA256@'
unit="neuronbench-run-$run.service"
code="$root/opt/neuronbench/$sha"
state="$root/var/lib/neuronbench/$run"
ready="$code.@SETUP_ID@.ready" # the same code, set up in another way, is not what was asked for

say() { echo "neuronbench: $*"; }
stop() { say "$2" >&2; exit "$1"; }
# asked whenever something has failed: what fails for want of room seldom says so
stop_if_full() {
    left=$(df -Pk "$root/opt" | awk 'NR == 2 { print $4 }')
    [ "${left:-9999}" -ge 1024 ] || stop 86 "the disk of this box is full ($left KiB are left on $root/opt): $1"
}

command -v systemctl >/dev/null || stop 80 'this box has no systemd, which is what keeps a run going'
mkdir -p "$root/opt/neuronbench" "$state" "$root/etc/systemd/system"
exec 9>"$root/opt/neuronbench/.lock"
flock 9
others=$(systemctl list-units --no-legend --plain --state=active,activating,reloading 'neuronbench-run-*' |
    cut -d' ' -f1 | grep -vxF "$unit" || true)
[ -z "$others" ] || stop 81 "another run is on its way on this box, and both would be measured wrong: $others"

if [ ! -e "$ready" ]; then
    part="$code.part"
    found='nothing'
    why='nothing was answered'
    for pause in 2 4 8 16 0; do
        rm -f "$part.tar.gz"
        if why=$(curl -fsS --connect-timeout 20 --max-time 1800 -o "$part.tar.gz" '@URL@' 2>&1); then
            found=$(sha256sum <"$part.tar.gz" | cut -c1-64)
            [ "$found" != "$sha" ] || break
            say "the code that came has the SHA-256 $found, expected $sha; once more"
        else
            stop_if_full "the code could not be written: $why"
            say "the code did not come ($why); once more"
        fi
        sleep "$((pause * @PACE@))"
    done
    [ "$found" != 'nothing' ] || stop 89 "the code cannot be had: $why. Does the box reach S3 (endpoint, route, DNS)?"
    [ "$found" = "$sha" ] || stop 88 "the code has the SHA-256 $found, expected $sha: nothing of it was run"
    rm -rf "$part" "$code" "$code".*.ready
    mkdir "$part"
    if ! tar -xzf "$part.tar.gz" -C "$part" --no-same-owner; then
        stop_if_full 'the code could not be unpacked'
        stop 87 'the code cannot be unpacked: see above'
    fi
    mv "$part" "$code"
    rm -f "$part.tar.gz"
    say "code $sha is unpacked; setting it up"
    cd "$code"
    # a shell of its own, which ends with the first thing that fails, and whatever it leaves behind holds no lock
    if ! printf '%s' '@SETUP@' | base64 -d >"$code.setup" || ! sh -e "$code.setup" >"$code.setup.log" 2>&1 </dev/null 9>&-; then
        tail -n 30 "$code.setup.log" >&2 || true # where there was no room for it
        stop_if_full 'the code could not be set up'
        stop 87 "the code cannot be set up: see above, and $code.setup.log on the box"
    fi
    sync # before it is called ready: a power cut must not leave half of it
    touch "$ready"
fi

if [ -e "$state/done.json" ]; then
    say "run $run is over on this box"
    exit 0
fi
# what the set-up left behind must be able to run the agent, or its unit would fail again and again, unheard
cd "$code"
why=$("@PYTHON@" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("neuronbench_fleet") is None)' 2>&1 </dev/null 9>&-) ||
    stop 87 "@PYTHON@ has no neuronbench-fleet, which the agent is part of: neuronbench[fleet] belongs to the set-up. $why"
printf '%s' '@ORDER@' | base64 -d | sed "s|\"code\": \"@ROOT@|\"code\": \"$root|" >"$state/.run.json"
mv "$state/.run.json" "$state/run.json"
sed "s|@ROOT@|$root|g" >"$root/etc/systemd/system/.$unit" <<'UNIT'
@UNIT@
UNIT
mv "$root/etc/systemd/system/.$unit" "$root/etc/systemd/system/$unit"
sync
systemctl daemon-reload
systemctl reset-failed "$unit" 2>/dev/null || true
systemctl enable "$unit"
systemctl start "$unit"
say "run $run is on its way ($unit)"

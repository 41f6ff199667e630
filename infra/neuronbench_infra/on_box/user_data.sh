#!/bin/bash
# First boot of a box. Nothing heavy happens here: what runs benchmarks is brought by `neuronbench fleet run`.
set -u
install -d -m 755 /opt/neuronbench /etc/neuronbench
base64 -d > /opt/neuronbench/idle_stop.sh <<'SCRIPT'
@IDLE_STOP@
SCRIPT
chmod 755 /opt/neuronbench/idle_stop.sh
cat > /etc/neuronbench/box.env <<'VALUES'
NEURONBENCH_DEPLOYMENT=@DEPLOYMENT@
NEURONBENCH_KIND=@KIND@
NEURONBENCH_IDLE_STOP_MIN=@IDLE_STOP_MIN@
NEURONBENCH_MAX_HOURS=@MAX_HOURS@
VALUES
cat > /etc/systemd/system/nb-idle-stop.service <<'UNIT'
[Unit]
Description=neuronbench: shut down when idle or expired

[Service]
Type=oneshot
EnvironmentFile=/etc/neuronbench/box.env
ExecStart=/opt/neuronbench/idle_stop.sh
TimeoutStartSec=50
UNIT
cat > /etc/systemd/system/nb-idle-stop.timer <<'UNIT'
[Unit]
Description=neuronbench: look every minute whether this box is still needed

[Timer]
OnBootSec=2min
OnUnitInactiveSec=1min
AccuracySec=5s

[Install]
WantedBy=timers.target
UNIT
systemctl daemon-reload
systemctl enable --now nb-idle-stop.timer

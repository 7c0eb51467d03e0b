#!/bin/bash
# A real Slurm of one node, for tests: needs Debian's slurm-wlm and munge, and root.
#   one_node_slurm.sh start FOLDER PORT   then: export SLURM_CONF=FOLDER/slurm.conf
#   one_node_slurm.sh stop FOLDER
set -euo pipefail
folder=$(mkdir -p "$2" && cd "$2" && pwd)
if [ "$1" = stop ]; then
  for pid in d.pid ctld.pid munge/m.pid; do
    [ -f "$folder/$pid" ] && kill "$(cat "$folder/$pid")" 2>/dev/null
  done
  exit 0
fi
port=$3
mkdir -p "$folder"/{state,spool,log,munge}
chmod 700 "$folder/munge"
host=$(hostname -s)
memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
cat >"$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/munge.socket
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.log
SlurmctldPidFile=$folder/ctld.pid
SlurmdPidFile=$folder/d.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=10
SchedulerParameters=sched_interval=2,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=5
PartitionName=urgent Nodes=$host MaxTime=INFINITE State=UP PriorityTier=2
CONF
if [ ! -f "$folder/munge/munge.key" ]; then
  head -c 1024 /dev/urandom >"$folder/munge/munge.key"
  chmod 600 "$folder/munge/munge.key"
fi
munged --key-file="$folder/munge/munge.key" --socket="$folder/munge/munge.socket" \
  --pid-file="$folder/munge/m.pid" --log-file="$folder/munge/m.log" --seed-file="$folder/munge/seed" --force
export SLURM_CONF="$folder/slurm.conf"
slurmctld
slurmd
for _ in $(seq 100); do
  sinfo -h -p main -o %t 2>/dev/null | grep -q idle && exit 0
  sleep 0.1
done
echo "the node does not come up; see $folder/log" >&2
exit 1

# Keeps one node running: mounts its file system, boots it, and boots it again whenever it reboots.
# Ends when the node is powered off. Started in a mount namespace of its own, so the mounts end with it.
#
# Environment: LAB_ROOT       where the node's file system is mounted
#              LAB_OVERLAY    mount options that say what it consists of
#              LAB_NAMESPACE  name of the node's network namespace
#              LAB_CGROUPS    cgroup.procs files of the groups that the machine runs in
# Arguments:   systemd-nspawn and its arguments
set -eu

# nspawn expects its runtime directory to be in memory, and would leave things behind in the host's.
mkdir -p /run/systemd/nspawn
mount -t tmpfs -o mode=0755 tmpfs /run/systemd/nspawn
mount -t overlay "$LAB_NAMESPACE" -o "$LAB_OVERLAY" "$LAB_ROOT"

while :; do
    # The network namespace outlives a reboot; a real machine's firewall rules do not.
    ip netns exec "$LAB_NAMESPACE" nft flush ruleset
    status=0
    sh -eu -c 'for file in $LAB_CGROUPS; do echo $$ >"$file"; done; exec "$@"' machine "$@" || status=$?
    # 133 is nspawn's way to say that the machine wants to boot again.
    [ "$status" -eq 133 ] || exit "$status"
    echo "--- reboot ---"
done

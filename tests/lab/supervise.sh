# Keeps one node running: mounts its file system, boots it, and boots it again whenever it reboots.
# Ends when the node is powered off. Started in a mount namespace of its own, so the mounts end with it.
#
# Arguments: where the node's file system is mounted, the mount options that say what it consists of, the node's
#            network namespace, and the command that boots it
set -eu
root=$1 layers=$2 namespace=$3
shift 3

# nspawn expects its runtime directory to be in memory, and would leave things behind in the host's.
mkdir -p /run/systemd/nspawn
mount -t tmpfs -o mode=0755 tmpfs /run/systemd/nspawn
mount -t overlay "$namespace" -o "$layers" "$root"

while :; do
    # The network namespace outlives a reboot; a real machine's firewall rules do not.
    ip netns exec "$namespace" nft flush ruleset
    status=0
    "$@" || status=$?
    # 133 is nspawn's way to say that the machine wants to boot again.
    [ "$status" -eq 133 ] || exit "$status"
    echo "--- reboot ---"
done

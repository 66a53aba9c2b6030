# Changes a root file system through Debian's own tools and keeps the difference as a layer.
# Arguments: the root file system, the layer's directory (upper, work, merged), the administrator's name.
# Runs in a mount namespace of its own, so nothing stays mounted.

mount -t overlay lab -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged"
mount --bind /dev "$2/merged/dev"
chroot "$2/merged" sh -eu -s "$3" <<'CHROOT'
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
# As cloud images have it: an administrator without a password, and nobody logs in as root.
useradd --create-home --shell /bin/bash "$1"
passwd --quiet --lock root
update-ca-certificates
CHROOT

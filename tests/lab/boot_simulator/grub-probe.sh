#!/bin/sh
# Simulated by Temper's lab: a disk with one file system, in place of the node's overlay, which GRUB cannot know.
case "$*" in
*abstraction* | *partuuid* | *hints_string*) ;;
*fs_uuid*) echo 11111111-2222-3333-4444-555555555555 ;;
*target=device*) echo /dev/vda1 ;;
*target=fs*) echo ext2 ;;
*compatibility_hint* | *target=drive*) echo hd0,gpt1 ;;
*partmap*) echo gpt ;;
esac

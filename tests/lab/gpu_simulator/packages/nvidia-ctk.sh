#!/bin/sh
# Simulated by Temper's lab: version, `cdi generate`, `cdi list` and `runtime configure` (in a file of its own). The specification has the fields of the real one: all
# device files, the driver's libraries with their versions, the hooks that prepare the container.
set -e
for libraries in /usr/lib/*/libnvidia-ml.so.1; do libraries=${libraries%/*}; done
gpus() {
    [ -e "$libraries/libnvidia-ml.so.1" ] || { fail LIBRARY_NOT_FOUND; return 1; }
    nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null || { fail DRIVER_NOT_LOADED; return 1; }
}
fail() {
    echo "ERRO[0000] failed to generate CDI spec: failed to create device CDI specs: failed to initialize NVML: ERROR_$1" >&2
}
node() {
    printf '    - path: "%s"\n' "$1"
}
hook() {
    printf '  - hookName: createContainer\n    path: /usr/bin/nvidia-cdi-hook\n    args:\n    - nvidia-cdi-hook\n'
    for argument in "$@"; do printf '    - %s\n' "$argument"; done
}
mount() {
    [ -e "$1" ] || return 0
    printf '  - hostPath: %s\n    containerPath: %s\n    options: [ro, nosuid, nodev, rbind, rprivate]\n' "$1" "$1"
}
specification() {
    printf -- '---\ncdiVersion: %s\nkind: nvidia.com/gpu\ndevices:\n' "@CDI_VERSION@"
    for gpu in $1 all; do
        printf -- '- name: "%s"\n  containerEdits:\n    deviceNodes:\n' "$gpu"
        if [ "$gpu" = all ]; then for each in $1; do node "/dev/nvidia$each"; done; else node "/dev/nvidia$gpu"; fi
    done
    printf 'containerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n  deviceNodes:\n'
    for file in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-modeset; do
        if [ -e "$file" ]; then printf '  - path: %s\n' "$file"; fi
    done
    printf '  hooks:\n'
    hook create-symlinks --link "libcuda.so.1::$libraries/libcuda.so"
    hook update-ldcache --folder "$libraries"
    printf '  mounts:\n'
    for library in "$libraries"/libcuda.so.*.* "$libraries"/libnvidia-ml.so.*.*; do mount "$library"; done
    mount /usr/bin/nvidia-smi
}
output=${NVIDIA_CTK_CDI_OUTPUT_FILE_PATH:-/dev/stdout}
for argument in "$@"; do
    case "$argument" in --output=*) output=${argument#--output=} ;; esac
done
case "$*" in
"runtime configure "*) exec /usr/libexec/gpu-simulator/nvidia-ctk "$@" ;;
--version | -v)
    echo "NVIDIA Container Toolkit CLI version @VERSION@"
    echo "commit: simulated by Temper's lab"
    ;;
"cdi list")
    devices=$(cat /etc/cdi/nvidia.yaml /var/run/cdi/nvidia.yaml 2>/dev/null | sed -n 's/^- name: "\(.*\)"/nvidia.com\/gpu=\1/p' | sort -u)
    echo "INFO[0000] Found $(printf '%s' "$devices" | grep -c . || true) CDI devices" >&2
    [ -z "$devices" ] || echo "$devices"
    ;;
"cdi generate"*)
    found=$(gpus) || exit 1
    if [ "$output" = /dev/stdout ]; then
        specification "$found"
    else
        mkdir -p "${output%/*}"
        specification "$found" >"$output.new"
        mv "$output.new" "$output"
        echo "INFO[0000] Generated CDI spec with version @CDI_VERSION@" >&2
    fi
    ;;
*)
    echo "nvidia-ctk: simulated by Temper's lab; expected --version, cdi list, cdi generate [--output=FILE] or runtime configure" >&2
    exit 1
    ;;
esac

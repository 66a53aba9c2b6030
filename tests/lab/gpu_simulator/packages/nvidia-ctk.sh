#!/bin/sh
# Simulated by Temper's lab: the version, and CDI specifications with the names of the node's GPUs.
set -e
names() { nvidia-smi --query-gpu=index --format=csv,noheader; }
case "$*" in
--version | -v)
    echo "NVIDIA Container Toolkit CLI version @VERSION@"
    echo "commit: simulated by Temper's lab"
    ;;
"cdi list")
    if [ -e /var/run/cdi/nvidia.yaml ] || [ -e /etc/cdi/nvidia.yaml ]; then
        count=$(($(names | wc -l) + 1))
        echo "INFO[0000] Found $count CDI devices" >&2
        for name in $(names) all; do echo "nvidia.com/gpu=$name"; done
    else
        echo "INFO[0000] Found 0 CDI devices" >&2
    fi
    ;;
"cdi generate"*)
    output=/dev/stdout
    for argument in "$@"; do
        case "$argument" in --output=*) output=${argument#--output=} ;; esac
    done
    if ! gpus=$(names); then
        echo "ERRO[0000] failed to generate CDI spec: failed to initialize NVML: ERROR_DRIVER_NOT_LOADED" >&2
        exit 1
    fi
    [ "$output" = /dev/stdout ] || mkdir -p "$(dirname "$output")"
    {
        echo "---"
        echo "cdiVersion: 0.7.0"
        echo "kind: nvidia.com/gpu"
        echo "devices:"
        for gpu in $gpus; do
            printf -- '- name: "%s"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia%s\n' "$gpu" "$gpu"
        done
    } >"$output"
    ;;
*)
    echo "nvidia-ctk: simulated by Temper's lab; expected --version, cdi list or cdi generate [--output=FILE]" >&2
    exit 1
    ;;
esac

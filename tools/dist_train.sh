#!/usr/bin/env bash
# Train on several processes of this node: bash tools/dist_train.sh CONFIG GPUS [options of tools/train.py]
# Without a GPU, GPUS is the number of processes. Several nodes: NNODES, NODE_RANK, MASTER_ADDR, PORT.
if [ $# -lt 2 ]; then
    echo "usage: bash $0 CONFIG GPUS [options of tools/train.py]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/dist_run.sh"
dist_run train.py "$2" "$1" --launcher pytorch "${@:3}"

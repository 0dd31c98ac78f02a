#!/usr/bin/env bash
# Test on several processes of this node: bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of tools/test.py]
# Without a GPU, GPUS is the number of processes. Several nodes: NNODES, NODE_RANK, MASTER_ADDR, PORT.
if [ $# -lt 3 ]; then
    echo "usage: bash $0 CONFIG CHECKPOINT GPUS [options of tools/test.py]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/dist_run.sh"
dist_run test.py "$3" "$1" "$2" --launcher pytorch "${@:4}"

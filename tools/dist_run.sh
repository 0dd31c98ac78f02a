# Sourced by dist_train.sh and dist_test.sh: start one process per GPU of this node (or per CPU share).
# usage: dist_run SCRIPT PROCESSES [arguments of SCRIPT]
# NNODES, NODE_RANK, MASTER_ADDR and PORT place this node in a job of several.

dist_run() {
    local tools script=$1 processes=$2
    tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || return
    shift 2
    case $processes in
        ''|0|*[!0-9]*) echo "error: the number of processes must be a positive integer, not '$processes'" >&2; return 2 ;;
    esac
    # Processes that all start one thread per core get in each other's way: share the cores instead.
    if [ -z "${OMP_NUM_THREADS:-}" ]; then
        local cores
        cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
        export OMP_NUM_THREADS=$(( cores / processes > 4 ? 4 : (cores / processes > 1 ? cores / processes : 1) ))
    fi
    PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python}" -m torch.distributed.run \
        --nnodes="${NNODES:-1}" \
        --node_rank="${NODE_RANK:-0}" \
        --master_addr="${MASTER_ADDR:-127.0.0.1}" \
        --master_port="${PORT:-29500}" \
        --nproc_per_node="$processes" \
        "$tools/$script" "$@"
}

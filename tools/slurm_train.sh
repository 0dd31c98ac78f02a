#!/usr/bin/env bash
# Train under slurm: bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of tools/train.py]
# GPUS (8), GPUS_PER_NODE (8; 0 asks slurm for none), CPUS_PER_TASK (5), SRUN_ARGS and PY_ARGS may be set.
if [ $# -lt 4 ]; then
    echo "usage: bash $0 PARTITION JOB_NAME CONFIG WORK_DIR [options of tools/train.py]" >&2
    exit 2
fi
TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}

PLACEMENT=()
if [ "$GPUS_PER_NODE" -gt 0 ]; then
    PLACEMENT=(--gres="gpu:$GPUS_PER_NODE" --ntasks-per-node="$GPUS_PER_NODE")
fi

set -x
# SRUN_ARGS and PY_ARGS hold several words each: unquoted on purpose.
# shellcheck disable=SC2086
PYTHONPATH="$TOOLS/..${PYTHONPATH:+:$PYTHONPATH}" srun \
    -p "$1" \
    --job-name="$2" \
    --ntasks="$GPUS" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    "${PLACEMENT[@]}" \
    ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$TOOLS/train.py" "$3" --work-dir="$4" --launcher=slurm "${@:5}" ${PY_ARGS:-}

#!/usr/bin/env bash
# The whole of it on one small example: bash tools/demo.sh
# Sets up an environment if need be, draws a data set, trains a detector on it with SharedCocoDataset in two processes,
# evaluates it, draws the memory it took beside that of MMEngine's own loops, and compares loading annotations with and
# without mmshared. Everything lands in work_dirs/demo.
set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
source tools/setup_env.sh || exit

WORK=work_dirs/demo
CONFIG=configs/demo/rtmdet_demo.py
LEAST_MAP=0.30
STOCK_LOOPS=(train_cfg.type=EpochBasedTrainLoop val_cfg.type=ValLoop test_cfg.type=TestLoop)
STOCK_EPOCHS=2  # of as many as the config has: by then the workers of both phases are there
PLOT=$WORK/memory.png
BENCHMARK=tools/benchmarks/bench_annotations.py
export MMSHARED_CACHE=${MMSHARED_CACHE:-$PWD/$WORK/cache}

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Without a GPU two processes share the CPU; a GPU serves one process.
count_processes() {
    "$PYTHON" -c 'import torch; print(min(2, torch.cuda.device_count() or 2))'
}

free_port() {
    "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

make_data() {
    "$PYTHON" tools/make_demo_data.py "$WORK/data" || fail 'the data set could not be made'
}

# train NAME TITLE [further arguments]: into $WORK/NAME, all output in $WORK/NAME.log.
train() {
    local name=$1 title=$2 processes
    shift 2
    processes=$(count_processes) || fail 'torch does not work in this environment'
    say "$title on $processes processes: $CONFIG (all output: $WORK/$name.log)"
    rm -rf "${WORK:?}/$name"
    PORT=${PORT:-$(free_port)} bash tools/dist_train.sh "$CONFIG" "$processes" --data-root "$WORK/data/" \
        --work-dir "$WORK/$name" "$@" 2>&1 | tee "$WORK/$name.log" | grep --line-buffered -E 'Epoch\(|mmshared - '
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then
        tail -n 40 "$WORK/$name.log" >&2
        fail "training failed; all of its output is in $WORK/$name.log"
    fi
}

plot() {
    say "Drawing the memory of both jobs"
    "$PYTHON" tools/analysis/plot_memory.py "$WORK/stock" "$WORK/train" --names "stock loops, $STOCK_EPOCHS epochs" \
        'lean loops' -o "$PLOT" || fail 'the picture could not be drawn'
}

benchmark() {
    say "Loading a 100 MB annotation file: stock and mmshared (all output: $WORK/benchmark.txt)"
    "$PYTHON" "$BENCHMARK" --size-mb 100 --ranks 2 --workers 0 --repeats 2 \
        --only first-load later-load store-size processes 2>&1 | tee "$WORK/benchmark.txt" ||
        fail "the benchmark failed; all of its output is in $WORK/benchmark.txt"
}

# The last value in the log of the training, which validates at its end.
read_map() {
    grep -oE 'coco/bbox_mAP: [0-9.]+' "$WORK/train.log" | tail -n 1 | cut -d ' ' -f 2
}

main() {
    local begin=$SECONDS map
    mkdir -p "$WORK" || exit
    say "Drawing a data set in $WORK/data"
    make_data
    train train 'Training'
    train stock "The first $STOCK_EPOCHS epochs with MMEngine's own loops" \
        --cfg-options "${STOCK_LOOPS[@]}" train_cfg.max_epochs=$STOCK_EPOCHS
    plot
    benchmark
    map=$(read_map) || fail "no bbox mAP in $WORK/train.log: the detector found nothing at all"
    say "Done in $(( SECONDS - begin )) s"
    echo "bbox mAP of the detector: $map"
    echo "logs: $WORK/train.log, $WORK/stock.log, $WORK/benchmark.txt, $WORK/train"
    awk -v map="$map" -v least="$LEAST_MAP" 'BEGIN { exit !(map >= least) }' ||
        fail "the detector has not learned: its bbox mAP $map is below $LEAST_MAP"
    echo "memory with stock and with lean loops: $PLOT"
}

main

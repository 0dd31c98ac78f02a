# The Python environment of the demo and the tests. Source it (`. tools/setup_env.sh`), or run it to set up only.
#
# If the active Python already has what is needed, that is used as it is. Otherwise an environment in the repository is
# made, completed or simply activated. Afterwards `python` and $PYTHON are the environment's interpreter and mmshared is
# importable. Nothing is downloaded when nothing is missing.
#
# MMSHARED_STACK names what mmshared plugs into, requirements/stack-<name>.txt: openmmlab (the default, in .venv) or
# onedl (in .venv-onedl). Both have the same import names, so an environment has one of them only: what is installed
# under a name of another stack's file is refused. MMSHARED_PYTHON names the interpreter to make the environment with.

_mms_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
_mms_stack=${MMSHARED_STACK:-openmmlab}
_mms_requirements=$_mms_root/requirements/stack-$_mms_stack.txt
_mms_log=''

_mms_say() { echo "[set-up] $*"; }
_mms_fail() { echo "[set-up] error: $*" >&2; return 1; }

# _mms_wrong PYTHON: prints why this interpreter will not do, nothing if it will.
_mms_wrong() {
    "$1" "$_mms_root/tools/check_env.py" "$_mms_requirements" 2>/dev/null || echo 'does not work'
}

# _mms_pythons: the minor versions of Python 3 that the stack's file names, lowest and highest.
_mms_pythons() {
    sed -n 's/^# Python 3\.\([0-9]*\) to 3\.\([0-9]*\)\..*/\1 \2/p' "$_mms_requirements"
}

# _mms_find_python: prints an interpreter that can make the environment, or says what is missing.
_mms_find_python() {
    local python reasons='' low high
    read -r low high <<<"$(_mms_pythons)"
    for python in ${MMSHARED_PYTHON:-python3 python3.11 python3.12 python3.10 python3.13 python3.9 /usr/bin/python3}; do
        if ! command -v "$python" >/dev/null; then
            reasons+="  $python: is not there"$'\n'
        elif ! "$python" -c "import sys; sys.exit(not (3, $low) <= sys.version_info[:2] <= (3, $high))" 2>/dev/null; then
            reasons+="  $python: version 3.$low to 3.$high is needed, this is $("$python" --version 2>&1)"$'\n'
        elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            reasons+="  $python: has no venv module (Debian: apt-get install python3-venv)"$'\n'
        elif ! "$python" -c 'import os, sysconfig as s, sys
sys.exit(not os.path.exists(os.path.join(s.get_paths()["include"], "Python.h")))' 2>/dev/null; then
            reasons+="  $python: has no Python.h, which compiling mmcv needs (Debian: apt-get install python3-dev)"$'\n'
        else
            echo "$python"
            return
        fi
    done
    _mms_fail "no usable Python 3.$low to 3.$high found (Debian: apt-get install python3 python3-venv python3-dev):"$'\n'"$reasons"
}

# _mms_last FROM: the last line of the log past that many bytes, a compiler's "[14/78] c++ ..." rather than its warnings.
_mms_last() {
    { tail -n 1 "$_mms_log" && tail -c "+$(( $1 + 1 ))" "$_mms_log" | grep -aE '^ *\[[0-9]+/[0-9]+\]'; } |
        tail -n 1 | tr -cd '[:print:]' | cut -c 1-70
}

# _mms_long TITLE COMMAND...: run it with its output in the log, a sign of life every 30 s, the log's end on failure.
_mms_long() {
    local title=$1 begin=$SECONDS status ticker shell=$BASHPID size
    shift
    touch "$_mms_log"
    size=$(wc -c <"$_mms_log")
    _mms_say "$title"
    (
        # The lock on the repository must not outlive this shell in here.
        [ -z "${lock:-}" ] || exec {lock}<&-
        while sleep 30 >/dev/null 2>&1 && kill -0 "$shell" 2>/dev/null; do
            printf '[set-up]   ... %d min %02d s, still at it: %s\n' $(( (SECONDS - begin) / 60 )) \
                $(( (SECONDS - begin) % 60 )) "$(_mms_last "$size")"
        done
    ) &
    ticker=$!
    "$@" >>"$_mms_log" 2>&1
    status=$?
    kill "$ticker" 2>/dev/null
    wait "$ticker" 2>/dev/null
    if [ "$status" -ne 0 ]; then
        tail -n 40 "$_mms_log" >&2
        _mms_fail "'$*' failed (exit status $status). All of its output: $_mms_log"
    fi
}

# _mms_gpu_without_nvcc: a GPU is visible to torch, but there is no compiler for mmcv's GPU ops.
_mms_gpu_without_nvcc() {
    command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 &&
        ! command -v nvcc >/dev/null && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]
}

_mms_install_mmcv() {
    if _mms_gpu_without_nvcc; then
        _mms_say 'There is a GPU but no nvcc, so mmcv is compiled for the CPU, and the GPU stays unused. To use it,'
        _mms_say "install a CUDA toolkit of torch's CUDA version, remove $1 and run this again."
        touch "$1/.mmshared/cpu-only"
        export CUDA_VISIBLE_DEVICES=-1
    fi
    # -v, so that the log shows the compiler at work.
    MMCV_WITH_OPS=1 _mms_long 'mmcv with its compiled ops. The first time this compiles for about 10 minutes on two cores; later pip has it in its cache.' \
        "$1/bin/python" -m pip install -v --no-build-isolation "$(grep mmcv== "$_mms_requirements")"
}

# _mms_headless_opencv PYTHON: the same release without windows. It may be there already, but has the same files, so
# that uninstalling the other takes some of them away.
_mms_headless_opencv() {
    local version
    version=$("$1" -c 'from importlib.metadata import version; print(version("opencv-python"))') &&
        "$1" -m pip uninstall -y opencv-python &&
        "$1" -m pip install --no-deps --force-reinstall "opencv-python-headless==$version"
}

# An import that works is the proof; opencv's ordinary build needs libraries of a desktop, its headless one does not.
_mms_finish() {
    local python=$1/bin/python
    if ! "$python" -c 'import cv2' >>"$_mms_log" 2>&1; then
        _mms_long 'OpenCV without its windows, because this machine lacks their libraries' \
            _mms_headless_opencv "$python" || return
    fi
    _mms_long 'Checking that it all imports' "$python" -c \
        'import torch, mmcv.ops, mmdet.apis, pycocotools.mask, msgspec, simdjson, pytest; print("fine", torch.__version__)'
}

# _mms_step VENV NAME COMMAND...: run the command unless it once succeeded with these requirements.
_mms_step() {
    local state=$1/.mmshared name=$2
    shift 2
    [ -e "$state/done-$name" ] && return
    echo "$name" >"$state/running"
    "$@" || return
    rm "$state/running"
    touch "$state/done-$name"
}

_mms_make_venv() {
    local venv=$1 python key
    # pip is not told to clean up when it is killed: what it was unpacking cannot be trusted. Compiling mmcv, the
    # long step, unpacks nothing until its end.
    if [ -e "$venv/.mmshared/running" ] && [ "$(cat "$venv/.mmshared/running")" != mmcv ]; then
        _mms_say 'An earlier set-up was interrupted: starting afresh (pip still has in its cache what was fetched or built).'
        rm -rf "$venv"
    fi
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(_mms_find_python) || return
        _mms_say "Making $venv with $("$python" --version) ($(command -v "$python"))"
        rm -rf "$venv"
        "$python" -m venv "$venv" || { _mms_fail "'$python -m venv' failed (Debian: apt-get install python3-venv)"; return; }
    fi
    # Other requirements than the last time: every step is looked at again (pip skips what fits).
    key=$(cat "$_mms_root"/requirements/*.txt | cksum)
    if [ "$(cat "$venv/.mmshared/key" 2>/dev/null)" != "$key" ]; then
        rm -f "$venv"/.mmshared/done-*
        mkdir -p "$venv/.mmshared"
        echo "$key" >"$venv/.mmshared/key"
    fi
    command -v g++ >/dev/null || command -v c++ >/dev/null || [ -e "$venv/.mmshared/done-mmcv" ] || {
        _mms_fail 'no C++ compiler, which mmcv needs (Debian: apt-get install g++)'; return; }
    _mms_log=$venv/.mmshared/setup.log
    local pip=("$venv/bin/python" -m pip install)
    _mms_step "$venv" torch _mms_long "torch and the build tools (log: $_mms_log)" \
        "${pip[@]}" -r "$_mms_root/requirements/build.txt" &&
    _mms_step "$venv" mmcv _mms_install_mmcv "$venv" &&
    _mms_step "$venv" stack _mms_long 'mmengine, mmdet and the rest' "${pip[@]}" -r "$_mms_requirements" &&
    _mms_step "$venv" self _mms_long 'mmshared itself' "${pip[@]}" --no-build-isolation --no-deps -e "$_mms_root" &&
    _mms_step "$venv" check _mms_finish "$venv"
}

_mms_main() {
    local venv=$_mms_root/.venv python lock='' status wrong
    [ "$_mms_stack" = openmmlab ] || venv=$_mms_root/.venv-$_mms_stack
    if [ ! -e "$_mms_requirements" ]; then
        _mms_fail "MMSHARED_STACK=$_mms_stack is not among the choices:" \
            "$(cd "$_mms_root/requirements" && ls stack-*.txt | sed 's/^stack-//; s/\.txt$//' | paste -s -d ' ')"
        return
    fi
    python=$(command -v python || command -v python3)
    [ -n "$python" ] && wrong=$(_mms_wrong "$python")
    if [ -n "$python" ] && [ -z "$wrong" ]; then
        _mms_say "Using the active environment: $python"
    else
        [ -z "$python" ] || _mms_say "Not using the active Python for MMSHARED_STACK=$_mms_stack: $python $wrong"
        # Two commands started together must not fill one folder: whoever comes second waits.
        if command -v flock >/dev/null; then
            exec {lock}<"$_mms_root"
            flock -n "$lock" || { _mms_say 'Another set-up is at work here: waiting for it.'; flock "$lock"; }
        fi
        _mms_make_venv "$venv"
        status=$?
        [ -z "$lock" ] || { flock -u "$lock"; exec {lock}<&-; }
        [ "$status" -eq 0 ] || return "$status"
        python=$venv/bin/python
        wrong=$(_mms_wrong "$python")
        if [ -n "$wrong" ]; then
            _mms_fail "$python $wrong. Something else has changed it: remove $venv and run this again."
            return
        fi
        export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
        [ ! -e "$venv/.mmshared/cpu-only" ] || export CUDA_VISIBLE_DEVICES=-1
        _mms_say "Using $venv"
    fi
    export PYTHON=$python PYTHONPATH=$_mms_root${PYTHONPATH:+:$PYTHONPATH}
}

_mms_main

# Find a Python and fill an environment. Sourced by scripts/quickstart and scripts/test, which have set ROOT.
# shellcheck shell=bash

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_PYTHON_VERSION_WARNING=1
export UV_PYTHON_PREFERENCE=${UV_PYTHON_PREFERENCE:-system}
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

# elapsed: seconds since the script began, as a column
elapsed() { printf '[%4d s]' "$SECONDS"; }

say() { printf '%s %s\n' "$(elapsed)" "$*"; }

# fail MESSAGE [REMEDY]: what is so, what to do, exit 1
fail() {
    printf '%s error: %s\n' "$(elapsed)" "$1" >&2
    [ -z "${2:-}" ] || printf '         → %s\n' "$2" >&2
    exit 1
}

# the process that is waited for and its log, for whoever traps a signal
JOB= LOG=

# in_background COMMAND...: start it in a process group of its own. Without `set -m` a shell starts background
# processes with SIGINT ignored, and what they start inherits that.
in_background() {
    set -m
    "$@" </dev/null &
    JOB=$!
    set +m
}

# end_job [SIGNAL]: end what runs in the background, if anything does, and wait for it
end_job() {
    [ -z "$LOG" ] || rm -f "$LOG"
    [ -n "$JOB" ] || return 0
    kill -"${1:-TERM}" "$JOB" 2>/dev/null && wait "$JOB" 2>/dev/null
    JOB=
}

# quietly WHAT COMMAND...: run it, say that it goes on every 10 s, show its output only where it fails
quietly() {
    local what=$1 code=0 beats=0
    shift
    LOG=$(mktemp) || return 1
    say "$what"
    in_background "$@" >"$LOG" 2>&1
    while kill -0 "$JOB" 2>/dev/null; do
        sleep 0.2
        beats=$((beats + 1))
        [ $((beats % 50)) -ne 0 ] || say "… $what"
    done
    wait "$JOB" || code=$?
    JOB=
    [ "$code" -eq 0 ] || cat "$LOG" >&2
    rm -f "$LOG"
    LOG=
    return "$code"
}

# works PYTHON [X.Y]: whether it runs and is that version (3.11 or newer where none is named); a shim may exist and fail
works() {
    "$1" -I -c 'import sys
want = sys.argv[1:]
now = sys.version_info[:2]
sys.exit(not (now >= (3, 11) and (not want or "%d.%d" % now == want[0])))' ${2:+"$2"} >/dev/null 2>&1 </dev/null
}

# can_make PYTHON: whether an environment can be made from it
can_make() {
    have_uv || "$1" -I -c 'import ensurepip, venv' >/dev/null 2>&1
}

have_uv() { [ -z "${LLMSERVE_NO_UV:-}" ] && command -v uv >/dev/null 2>&1; }

# candidates [X.Y]: every place where a Python may be, best first
candidates() {
    local v path
    [ -n "${1:-}" ] || command -v python3 || true
    for v in ${1:-3.12 3.11 3.13 3.14}; do
        # every one on PATH: the first may be a shim that fails, or lack venv
        type -ap "python$v" || true
        for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$v"*/bin/"python$v"; do
            [ ! -x "$path" ] || printf '%s\n' "$path"
        done
        ! have_uv || uv python find --no-python-downloads --no-project "$v" 2>/dev/null || true
    done
    type -ap python3 || true
}

# find_python [X.Y]: print a Python that works and can make an environment; where there is none, fail and print
# "without-venv PYTHON" for one that works
find_python() {
    local path bare=
    while IFS= read -r path; do
        works "$path" "${1:-}" || continue
        if can_make "$path"; then
            printf '%s\n' "$path"
            return 0
        fi
        bare=${bare:-$path}
    done < <(candidates "${1:-}")
    [ -z "$bare" ] || printf 'without-venv %s\n' "$bare"
    return 1
}

# need_python: like find_python, and an explanation where there is none
need_python() {
    local found version
    if found=$(find_python "$@"); then
        printf '%s\n' "$found"
        return
    fi
    if [ -n "$found" ]; then
        found=${found#without-venv }
        version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        fail "$found cannot make virtual environments: its venv module is missing" \
            "sudo apt install python$version-venv   (or install uv: https://docs.astral.sh/uv/)"
    fi
    if have_uv; then
        # uv brings its own where the system has none
        printf '%s\n' "${1:-3.12}"
        return
    fi
    fail "Python ${1:-3.11 or newer} is needed; python3 here is $(python3 -c 'import platform; print(platform.python_version())' 2>/dev/null || echo missing)" \
        "sudo apt install python3.11 python3.11-venv   (or install uv: https://docs.astral.sh/uv/)"
}

# fill_environment FOLDER PYTHON EXTRAS [GROUP]: make FOLDER and install this checkout into it, unless that is done
fill_environment() {
    local folder=$1 python=$2 extras=$3 group=${4:-} stamp tool
    stamp="[$extras] $group $(cksum <"$ROOT/pyproject.toml")"
    tool=pip
    ! have_uv || tool=uv
    # its first line is the checkout: scripts in an environment name the place they were made for
    if [ "$(cat "$folder/.installed" 2>/dev/null)" = "$ROOT"$'\n'"$stamp" ] && works "$folder/bin/python"; then
        say "environment $folder is up to date"
        return
    fi
    if [ -e "$folder" ] && { ! works "$folder/bin/python" \
        || { [ -e "$folder/.installed" ] && [ "$(head -n 1 "$folder/.installed")" != "$ROOT" ]; }; }; then
        [ -e "$folder/pyvenv.cfg" ] || fail "$folder is in the way: it is no virtual environment" "move it elsewhere"
        rm -rf "$folder"
    fi
    if [ ! -e "$folder" ]; then
        if [ "$tool" = uv ]; then
            quietly "making $folder with uv" uv venv -q --no-project --python "$python" "$folder"
        else
            quietly "making $folder with $python" "$python" -m venv "$folder"
        fi || { rm -rf "$folder"; fail "$folder could not be made" "see the lines above"; }
        printf '%s\n' "$ROOT" >"$folder/.installed"
    fi
    local install=("$folder/bin/python" -m pip install -q)
    if [ "$tool" = uv ]; then
        install=(uv pip install -q --python "$folder/bin/python")
    elif ! "$folder/bin/python" -c 'import pip' 2>/dev/null; then
        # made by uv, which was on PATH then
        quietly "adding pip" "$folder/bin/python" -m ensurepip -q || fail "$folder has no pip" "delete it, and begin anew"
    fi
    if [ "$tool" = pip ] && [ -n "$group" ]; then
        # pip reads dependency groups since 25.1
        quietly "updating pip" "${install[@]}" --upgrade 'pip>=25.1' || fail "pip could not be updated" "$_REACHABLE"
    fi
    quietly "installing llmserve[$extras]${group:+ and the $group tools} with $tool" \
        "${install[@]}" -e "$ROOT[$extras]" ${group:+--group "$ROOT/pyproject.toml:$group"} \
        || fail "the installation failed" "$_REACHABLE"
    printf '%s\n%s\n' "$ROOT" "$stamp" >"$folder/.installed"
}

_REACHABLE="see the lines above; is the package index reachable?"

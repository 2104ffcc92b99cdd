# What all engines share: messages, folders, ports, processes. Sourced by scripts/engines.
# shellcheck shell=bash disable=SC2154 # the variables set by scripts/engines

cache=${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/halfbox/engines
run=${HALFBOX_ENGINES_RUN:-${TMPDIR:-/tmp}/halfbox-engines-$(id -u)}

say() { printf 'engines: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
usage_error() { say "$*"; say "see scripts/engines --help"; exit 2; }

# need fails when a program is missing, and names the Debian package that has it.
need() { command -v "$1" >/dev/null || fail "$1 is missing. On Debian: apt-get install $2"; }

# open_run makes the run folder and takes its lock, so that two calls on one folder follow one another.
open_run() {
  [ -r /proc/self/stat ] || fail "this script needs Linux: it tells its processes from others by /proc"
  need flock util-linux
  if [ ! -d "$run" ] && [ "$1" != up ]; then
    case "$1" in
      down) say "nothing runs: there is no run folder $run"; exit 0 ;;
      logs) fail "nothing has been started: there is no run folder $run" ;;
      *) return 0 ;; # status says it engine by engine
    esac
  fi
  (umask 077 && mkdir -p "$run")
  [ -O "$run" ] || fail "the run folder $run belongs to another user: set HALFBOX_ENGINES_RUN to a folder of your own"
  run=$(cd "$run" && pwd)
  [[ $run != *[[:space:]]* ]] || fail "the run folder's path must not hold white space: $run"
  case "$1" in
    up | down)
      trap 'interrupted 130' INT
      trap 'interrupted 143' TERM HUP
      trap 'undo $?' EXIT
      take_lock
      ;;
  esac
}

# take_lock waits for the run folder's lock. A "down --purge" before us may have removed the file it waited at.
take_lock() {
  while :; do
    (umask 077 && mkdir -p "$run")
    exec {lock}>"$run/lock"
    flock "$lock" & wait $!
    if [ "$run/lock" -ef "/proc/$$/fd/$lock" ]; then return; fi
    exec {lock}>&-
  done
}

# ---- work that may be interrupted

child=      # the tool that runs now
started=()  # engines that this call started and that are not all ready yet
scratch=()  # folders to remove at the end

# work runs a tool in the background and waits for it: bash runs a trap only between commands, and a download may
# take minutes. Its output goes to stderr, because stdout is for the export lines.
work() {
  "$@" </dev/null >&2 {lock}>&- &
  child=$!
  local rc=0
  wait "$child" || rc=$?
  child=
  return $rc
}

interrupted() {
  trap '' INT TERM HUP # once is enough
  say "interrupted"
  exit "$1"
}

# undo leaves nothing half done behind, whatever ended the script.
undo() {
  trap '' INT TERM HUP
  if [ -n "$child" ]; then
    kill "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  local name
  for name in ${started[@]+"${started[@]}"}; do ask_process "$name"; done
  for name in ${started[@]+"${started[@]}"}; do stop_process "$name" 3; done
  [ ${#scratch[@]} -eq 0 ] || rm -rf "${scratch[@]}"
  exit "$1"
}

# ---- cache

# fetch_once fills the cache folder $1 by the function $2 (which gets an empty folder), unless it is there and whole.
# Other calls of this user wait meanwhile; a folder that is not whole is never seen under its own name.
fetch_once() {
  local dir=$1 fill=$2 new
  mkdir -p "$cache"
  exec {cache_lock}>"$dir.lock"
  flock "$cache_lock" & wait $!
  if ! is_whole "$dir"; then
    if [ -d "$dir" ]; then say "the cache folder $dir is damaged, it is filled again"; fi
    new=$(mktemp -d "$dir.new.XXXXXX")
    scratch+=("$new")
    "$fill" "$new"
    manifest "$new" >"$new/MANIFEST"
    rm -rf "$dir"
    mv "$new" "$dir"
  fi
  exec {cache_lock}>&-
}

# The downloads are verified by apt's signatures and Maven's checksums; what may happen to them afterwards in a cache
# is that files vanish or are cut short, which names and sizes tell.
manifest() { (cd "$1" && find . -type f ! -path ./MANIFEST -printf '%s %p\n' | LC_ALL=C sort); }
is_whole() { [ -s "$1/MANIFEST" ] && manifest "$1" | cmp -s - "$1/MANIFEST"; }

# ---- ports

port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

all_free() {
  local offset
  for offset in "${@:2}"; do
    if port_taken $(($1 + offset)); then return 1; fi
  done
}

# choose_port prints a port P such that P and each P+offset are free: the remembered one, the usual one, else one at
# random from below the range that the kernel gives to clients. Usage: choose_port FILE USUAL OFFSET...
choose_port() {
  local file=$1 usual=$2 port tries
  shift 2
  if [ -s "$file" ]; then
    port=$(<"$file")
    if all_free "$port" 0 "$@"; then echo "$port"; return; fi
    say "port $port of last time is taken now, another one is chosen"
  elif [ -z "$any_port" ] && all_free "$usual" 0 "$@"; then
    echo "$usual" | tee "$file"
    return
  fi
  for tries in {1..200}; do
    port=$((20000 + RANDOM % 12000))
    if all_free "$port" 0 "$@"; then echo "$port" | tee "$file"; return; fi
  done
  fail "no free port after $tries tries"
}

# exchange sends the bytes of a printf format to a port and prints the first of what comes back, zero bytes removed.
exchange() {
  # shellcheck disable=SC2016
  timeout 3 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "$2" >&3 && dd bs=64k count=1 status=none <&3' - "$1" "$2" 2>/dev/null | tr -d '\0'
}

# alive tells whether a server answers, which a busy one may do late. Usage: alive NAME CONDITION...
alive() {
  local name=$1 tries
  shift
  for tries in 1 2 3; do
    pid_of "$name" >/dev/null || return 1
    if "$@"; then return 0; fi
    [ "$tries" = 3 ] || sleep 0.5
  done
  return 1
}

# ---- processes; NAME.pid holds "PID START", START as in /proc/PID/stat, so that a pid used again is not taken for ours

start_time() {
  local stat
  # Not "{ ...; } 2>/dev/null": a trap that runs inside would have no stderr.
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) } # the name in front may hold anything
  # shellcheck disable=SC2086
  set -- $stat
  # Dead, and its parent has not noticed. Not so while other threads than the first one are left: they still hold its
  # files and ports.
  [ "$1" != Z ] || [ "${18}" -gt 1 ] || return 1
  echo "${20}"
}

# pid_of prints the id of our process NAME, or fails when it does not run.
pid_of() {
  local pid start
  [ -s "$run/$1.pid" ] || return 1
  read -r pid start <"$run/$1.pid"
  [ -n "$start" ] && [ "$(start_time "$pid")" = "$start" ] || return 1
  echo "$pid"
}

# launch starts a daemon in a session of its own (a Ctrl-C in this terminal is not for it) with its output in
# NAME.log, and notes it as started by this call.
launch() {
  local name=$1
  shift
  [ ! -s "$run/$name.log" ] || mv "$run/$name.log" "$run/$name.log.1"
  rm -f "$run/$name.pid"
  started+=("$name")
  (
    # The pid is written before the exec, by the process itself: there is no moment at which a daemon runs unnoted.
    trap '' INT
    self=$BASHPID # in the substitution below it is another
    echo "$self $(start_time "$self")" >"$run/$name.pid"
    exec setsid "$@" </dev/null >"$run/$name.log" 2>&1 {lock}>&-
  ) &
  until [ -s "$run/$name.pid" ]; do sleep 0.02; done
}

# await polls a condition until it holds; it fails with the log's last lines when the process ends or time is up.
# Usage: await NAME SECONDS CONDITION...
await() {
  local name=$1 deadline=$((SECONDS + $2))
  shift 2
  while ! "$@"; do
    if ! pid_of "$name" >/dev/null; then give_up "$name" "it ended"; fi
    if [ $SECONDS -ge $deadline ]; then give_up "$name" "it was not ready in time"; fi
    sleep 0.1 & wait $! # so that a signal is seen at once
  done
}

# The output of RocketMQ's servers is mostly what their logger says of itself; they write logs of their own beside it.
give_up() {
  local log
  say "$1 did not start: $2. The last lines of its logs:"
  for log in "$run/$1.log" "$run/rocketmq/logs/rocketmqlogs/$1.log"; do
    if [ -s "$log" ]; then
      say "$log"
      grep -av -e '|-INFO in ' -e '|-WARN in ' "$log" | tail -n 20 >&2 || true
    fi
  done
  exit 1
}

# ask_process asks our process NAME to end; when its data will be removed anyway, it is not asked but killed.
ask_process() {
  local pid
  pid=$(pid_of "$1") || return 0
  if [ -n "$purge" ]; then
    kill -KILL "$pid" 2>/dev/null || true
    return
  fi
  kill -TERM "$pid" 2>/dev/null || true
  kill -CONT "$pid" 2>/dev/null || true # a stopped process sees no other signal
}

# stop_process ends our process NAME: it is asked, waited for, and killed when it does not end within some seconds.
stop_process() {
  local name=$1 pid tenths=$(($2 * 10))
  if pid=$(pid_of "$name"); then
    ask_process "$name"
    while pid_of "$name" >/dev/null && [ $tenths -gt 0 ]; do
      sleep 0.1
      tenths=$((tenths - 1))
    done
    if pid_of "$name" >/dev/null; then
      say "$name (pid $pid) did not end, it is killed"
      kill -KILL "$pid" 2>/dev/null || true
      while pid_of "$name" >/dev/null; do sleep 0.1; done
    fi
    say "$name is down"
  elif [ -e "$run/$name.pid" ] && [ -z "$purge" ]; then
    say "$name was not running any more"
  fi
  rm -f "$run/$name.pid"
}

# watch_exit downs everything when a process ends, however it ends: tests that are killed leave no servers behind.
watch_exit() {
  local start
  start=$(start_time "$1") || fail "--until-exit: there is no process $1"
  [ "$(cat "$run/watched" 2>/dev/null)" != "$1 $start" ] || return 0
  echo "$1 $start" >"$run/watched"
  # shellcheck disable=SC2016
  HALFBOX_ENGINES_RUN=$run setsid bash -c '
    tail --pid="${1% *}" -f /dev/null
    if [ "$(cat "$HALFBOX_ENGINES_RUN/watched")" = "$1" ]; then exec "$2" down --purge; fi
  ' - "$1 $start" "$here/engines" </dev/null >/dev/null 2>&1 {lock}>&- &
}

# describe prints one line of the status table.
describe() { printf '%-16s %-10s %-22s %s\n' "$1" "$2" "$3" "$4"; }

# purge_run removes what this script makes in the run folder, and the folder when nothing else is in it: the folder
# is whatever HALFBOX_ENGINES_RUN says.
purge_run() {
  rm -rf "$run"/{mysql,rocketmq,watched} "$run"/*.{pid,log,log.1,port} "$run/lock"
  rmdir "$run" 2>/dev/null || say "$run holds other files, it stays"
}

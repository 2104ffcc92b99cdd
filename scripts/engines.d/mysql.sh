# MySQL: Debian unstable's server, unpacked into the cache and started through its own loader, so that it runs beside
# an older system's libraries and nothing is installed. Sourced by scripts/engines.
# shellcheck shell=bash disable=SC2154 # the variables set by scripts/engines and common.sh

mysql_package=mysql-server-core
mysql_suite=sid
mysql_schema=halfbox_test

mysql_home() { echo "$cache/mysql-$(dpkg --print-architecture)"; }

# mysql_greets: a server that is well sends its greeting unasked, with the protocol version 10 (a line feed) and its
# own version at the front.
mysql_greets() { [ -s "$run/mysql.port" ] && exchange "$(<"$run/mysql.port")" '' | LC_ALL=C grep -aq '^[0-9]\+\.[0-9]\+\.'; }

mysql_up_already() { alive mysql mysql_greets; }

mysql_fetch() {
  need apt-get apt
  need dpkg dpkg
  fetch_once "$(mysql_home)" mysql_fill
}

# mysql_mirror prints the address of the Debian mirror that this machine uses.
mysql_mirror() {
  local uri origin
  if [ -n "${HALFBOX_ENGINES_DEBIAN_MIRROR:-}" ]; then echo "$HALFBOX_ENGINES_DEBIAN_MIRROR"; return; fi
  # shellcheck disable=SC2016
  # ORIGIN is known once apt has lists, and empty or unexpanded before.
  while read -r uri origin; do
    case "$uri $origin" in *security* | *" Ubuntu"*) continue ;; esac
    echo "$uri"
    return
  done < <(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' 'Created-By: Packages')
  fail "apt's configuration names no Debian mirror: set HALFBOX_ENGINES_DEBIAN_MIRROR to the address of one"
}

mysql_fill() {
  local new=$1 apt mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg deb
  [ -r "$keyring" ] || fail "$keyring is missing. On Debian: apt-get install debian-archive-keyring"
  mirror=$(mysql_mirror)
  apt=$(mktemp -d "$cache/apt.XXXXXX")
  scratch+=("$apt")
  mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$new/root"
  : >"$apt/status"
  echo "deb [signed-by=$keyring] $mirror $mysql_suite main" >"$apt/sources.list"
  # A private apt: its own sources, lists, cache, and a system in which nothing is installed, so that it downloads
  # every library down to libc.
  local options=(
    -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferences=/dev/null
    -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache"
    -o Dir::State::status="$apt/status" -o Dir::State::extended_states="$apt/extended"
    -o APT::Architecture="$(dpkg --print-architecture)" -o APT::Architectures::="$(dpkg --print-architecture)"
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=3 -o Debug::NoLocking=1
    -o APT::Keep-Downloaded-Packages=true -qq
  )
  say "downloading $mysql_package of Debian $mysql_suite and its libraries (60 MB)"
  work apt-get "${options[@]}" update || fail "apt-get update failed, see above"
  work apt-get "${options[@]}" install -y --download-only --no-install-recommends "$mysql_package" >"$apt/install.log" 2>&1 ||
    { tail -n 20 "$apt/install.log" >&2; fail "apt-get could not download $mysql_package"; }
  for deb in "$apt"/cache/archives/*.deb; do
    work dpkg -x "$deb" "$new/root" || fail "dpkg could not unpack $deb"
  done
  rm -rf "$apt" "$new"/root/usr/share/{doc,man,locale,perl,info,lintian} "$new"/root/usr/lib/*/perl*
  mysql_command "$new" --version >"$new/VERSION" || fail "the downloaded mysqld does not run on this machine"
  say "$(mysql_version "$new") is in the cache"
}

mysql_version() { sed 's/.*Ver \([0-9.]*\).*/MySQL \1/' "$1/VERSION"; }

# mysql_server sets "server" to the command that runs mysqld of a cache folder.
mysql_server() {
  local root=$1/root loader lib libs=
  for loader in "$root"/usr/lib*/ld-linux*.so.*; do :; done
  for lib in "$root"/usr/lib/*-linux-gnu* "$root"/lib/*-linux-gnu*; do
    if [ -d "$lib" ]; then libs=$libs:$lib; fi
  done
  server=("$loader" --library-path "${libs#:}" "$root/usr/sbin/mysqld" --no-defaults)
}

mysql_command() {
  local server
  mysql_server "$1"
  "${server[@]}" "${@:2}"
}

mysql_start() {
  local home port server data=$run/mysql/data
  stop_process mysql 10
  home=$(mysql_home)
  port=$(choose_port "$run/mysql.port" 3306)
  mkdir -p "$run/mysql/tmp"
  mysql_server "$home"
  server+=(--basedir="$home/root/usr" --lc-messages-dir="$home/root/usr/share/mysql" --tmpdir="$run/mysql/tmp")
  if [ "$(id -u)" = 0 ]; then server+=(--user=root); fi
  if [ ! -d "$data" ]; then
    rm -rf "$data.new"
    if ! work "${server[@]}" --initialize-insecure --datadir="$data.new" 2>"$run/mysql-init.log"; then
      say "mysql could not make its data folder. The last lines of $run/mysql-init.log:"
      tail -n 30 "$run/mysql-init.log" >&2
      exit 1
    fi
    mv "$data.new" "$data"
  fi
  echo "CREATE DATABASE IF NOT EXISTS $mysql_schema;" >"$run/mysql/init.sql"
  # A killed server leaves this, and a new one refuses to start while the old one's pid is known: as a zombie, for one.
  rm -f "$data/mysql.sock.lock"
  server+=(
    --datadir="$data" --port="$port" --bind-address=127.0.0.1 --mysqlx=OFF --secure-file-priv=NULL
    --socket=mysql.sock # in the data folder: a full path may be longer than a socket's may be
    --pid-file="$run/mysql/mysqld.pid" --init-file="$run/mysql/init.sql" --max-connections=1000
  )
  if [ "$profile" = test ]; then
    # What the system has is safe from a killed server; only a power cut would lose the last second.
    server+=(--innodb-flush-log-at-trx-commit=2 --sync-binlog=0)
  fi
  launch mysql "${server[@]}"
}

mysql_await() {
  await mysql 60 mysql_greets
  say "$(mysql_version "$(mysql_home)") is up at 127.0.0.1:$(<"$run/mysql.port")"
}

mysql_export() { echo "export HALFBOX_TEST_MYSQL_DSN='root@tcp(127.0.0.1:$(<"$run/mysql.port"))/$mysql_schema'"; }

mysql_ask() { ask_process mysql; }
mysql_stop() { stop_process mysql 60; }

mysql_status() {
  local pid
  if ! pid=$(pid_of mysql); then describe mysql down - ''; return 1; fi
  if ! mysql_up_already; then describe mysql "half dead" "127.0.0.1:$(cat "$run/mysql.port")" "pid $pid does not answer"; return 1; fi
  describe mysql up "127.0.0.1:$(<"$run/mysql.port")" "pid $pid, $(mysql_version "$(mysql_home)")"
}

mysql_logs() { if [ -e "$run/mysql.log" ]; then echo "$run/mysql.log"; fi; }

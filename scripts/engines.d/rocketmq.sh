# RocketMQ: Apache's jars from Maven's repositories, a name server and a broker, started with plain java.
# Sourced by scripts/engines.
# shellcheck shell=bash disable=SC2154 # the variables set by scripts/engines and common.sh

rocketmq_version=5.4.0
rocketmq_copy=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies

rocketmq_home() { echo "$cache/rocketmq-$rocketmq_version"; }

# ---- questions in the remoting protocol: length, length of the header, header

remoting_ask() {
  local header=$2 bytes
  printf -v bytes '\\x00\\x00\\x00\\x%02x\\x00\\x00\\x00\\x%02x' $((${#header} + 4)) ${#header}
  exchange "$1" "$bytes$header"
}

namesrv_answers() {
  [ -s "$run/namesrv.port" ] || return 1
  remoting_ask "$(<"$run/namesrv.port")" '{"code":206,"flag":0,"language":"GO","opaque":1,"version":317}' | grep -aq topicList
}

# broker_registered: the name server has a route to this broker. TBW102 is the topic of which all brokers that may
# create topics are.
broker_registered() {
  [ -s "$run/broker.port" ] || return 1
  remoting_ask "$(<"$run/namesrv.port")" '{"code":105,"extFields":{"topic":"TBW102"},"flag":0,"language":"GO","opaque":1,"version":317}' |
    grep -aq "127.0.0.1:$(<"$run/broker.port")"
}

# broker_answers: 30 asks for a queue's last offset, which the store must answer.
broker_answers() {
  [ -s "$run/broker.port" ] || return 1
  remoting_ask "$(<"$run/broker.port")" '{"code":30,"extFields":{"topic":"TBW102","queueId":"0"},"flag":0,"language":"GO","opaque":1,"version":317}' |
    grep -aq '"offset"'
}

broker_ready() { broker_answers && broker_registered; }

rocketmq_up_already() { alive namesrv namesrv_answers && alive broker broker_ready; }

# ---- cache

rocketmq_fetch() {
  need java default-jre-headless
  local major
  major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
  [ "${major:-0}" -ge 17 ] || fail "RocketMQ is run on Java 17 or newer, this is Java ${major:-of unknown version}. On Debian: apt-get install default-jre-headless"
  fetch_once "$(rocketmq_home)" rocketmq_fill
}

rocketmq_fill() {
  need mvn maven
  local pom
  pom=$(mktemp -d "$cache/pom.XXXXXX")
  scratch+=("$pom")
  sed "s|<rocketmq.version>.*<|<rocketmq.version>$rocketmq_version<|" "$here/engines.d/rocketmq-pom.xml" >"$pom/pom.xml"
  say "downloading RocketMQ $rocketmq_version with Maven (94 MB)"
  # shellcheck disable=SC2016
  if ! work bash -c 'exec mvn "$@" >"$0" 2>&1' "$pom/log" -B --strict-checksums -f "$pom/pom.xml" "$rocketmq_copy" -DincludeScope=runtime -DoutputDirectory="$1/lib"; then
    grep -av -e '^\[INFO\] Download' "$pom/log" | tail -n 20 >&2 || true
    fail "Maven could not download RocketMQ"
  fi
  rm -rf "$pom"
  say "RocketMQ $rocketmq_version is in the cache"
}

# ---- processes

# rocketmq_java sets "server" to the command that runs a main class. Usage: rocketmq_java HEAP... CLASS ARGS...
rocketmq_java() {
  server=(
    java "-Drocketmq.home.dir=$run/rocketmq" "-Duser.home=$run/rocketmq" "-Djava.io.tmpdir=$run/rocketmq/tmp"
    -Djava.net.preferIPv4Stack=true -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData
    # The 5.4 classes reach into the JDK as Java 8 let them.
    --add-opens java.base/java.lang=ALL-UNNAMED --add-opens java.base/java.nio=ALL-UNNAMED
    --add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/jdk.internal.ref=ALL-UNNAMED
    --add-exports java.base/sun.nio.ch=ALL-UNNAMED
    -cp "$(rocketmq_home)/lib/*" "$@"
  )
}

namesrv_launch() {
  local server port
  port=$(choose_port "$run/namesrv.port" 9876)
  cat >"$run/rocketmq/namesrv.conf" <<CONF
listenPort=$port
bindAddress=127.0.0.1
rocketmqHome=$run/rocketmq
kvConfigPath=$run/rocketmq/kvConfig.json
configStorePath=$run/rocketmq/namesrv.properties
CONF
  rocketmq_java -Xms64m -Xmx256m org.apache.rocketmq.namesrv.NamesrvStartup -c "$run/rocketmq/namesrv.conf"
  launch namesrv "${server[@]}"
}

broker_launch() {
  local server port
  port=$(choose_port "$run/broker.port" 10911 -2 1) # the ports of the "VIP channel" and of replication beside it
  broker_conf "$port" >"$run/rocketmq/broker.conf"
  rocketmq_java -Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m org.apache.rocketmq.broker.BrokerStartup -c "$run/rocketmq/broker.conf"
  launch broker "${server[@]}"
}

# All is bound to 127.0.0.1 but the replication port: the broker has no setting for its address.
broker_conf() {
  cat <<CONF
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerRole=ASYNC_MASTER
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
bindAddress=127.0.0.1
listenPort=$1
haListenPort=$(($1 + 1))
namesrvAddr=127.0.0.1:$(<"$run/namesrv.port")
rocketmqHome=$run/rocketmq
storePathRootDir=$run/rocketmq/store
storePathCommitLog=$run/rocketmq/store/commitlog
autoCreateTopicEnable=true
diskMaxUsedSpaceRatio=95
timerWheelEnable=false
CONF
  if [ "$profile" = production ]; then
    # Transaction times are the broker's own defaults.
    echo flushDiskType=SYNC_FLUSH
  else
    cat "$here/engines.d/broker-test.conf"
  fi
  if [ -n "${HALFBOX_ENGINES_BROKER_CONF:-}" ]; then cat "$HALFBOX_ENGINES_BROKER_CONF"; fi
}

# ---- commands

# rocketmq_start starts of the two what does not run. The broker must find the name server when it starts, or it
# registers only ten seconds later.
rocketmq_start() {
  mkdir -p "$run/rocketmq/tmp"
  if ! alive namesrv namesrv_answers; then
    stop_process namesrv 10
    namesrv_launch
    await namesrv 60 namesrv_answers
  fi
  if ! alive broker broker_answers || broker_forgot; then
    stop_process broker 20
    broker_launch
  fi
}

rocketmq_await() {
  await broker 90 broker_ready
  say "RocketMQ $rocketmq_version is up: name server 127.0.0.1:$(<"$run/namesrv.port"), broker 127.0.0.1:$(<"$run/broker.port")"
}

# broker_forgot: the running broker knows another name server, whose port had to be changed.
broker_forgot() { ! grep -qx "namesrvAddr=127.0.0.1:$(<"$run/namesrv.port")" "$run/rocketmq/broker.conf"; }

rocketmq_export() { echo "export HALFBOX_TEST_ROCKETMQ=127.0.0.1:$(<"$run/namesrv.port")"; }

# The broker takes its leave of the name server, which must be there until then.
rocketmq_ask() { ask_process broker; }
rocketmq_stop() {
  stop_process broker 30
  stop_process namesrv 15
}

rocketmq_status() {
  local name pid ok=0
  for name in namesrv broker; do
    if ! pid=$(pid_of $name); then
      describe "rocketmq $name" down - ''
      ok=1
    elif ! alive $name ${name}_answers; then
      describe "rocketmq $name" "half dead" "127.0.0.1:$(cat "$run/$name.port")" "pid $pid does not answer"
      ok=1
    elif [ $name = broker ] && ! broker_registered; then
      describe "rocketmq $name" "half dead" "127.0.0.1:$(<"$run/$name.port")" "pid $pid, not known to the name server"
      ok=1
    else
      describe "rocketmq $name" up "127.0.0.1:$(<"$run/$name.port")" "pid $pid, RocketMQ $rocketmq_version"
    fi
  done
  return $ok
}

rocketmq_logs() {
  local file
  for file in "$run"/{namesrv,broker}.log "$run"/rocketmq/logs/rocketmqlogs/{namesrv,broker,transaction}.log; do
    if [ -s "$file" ]; then echo "$file"; fi
  done
}

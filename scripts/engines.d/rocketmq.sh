# RocketMQ: Apache's jars from Maven's repositories, a name server and a broker, started with plain java.
# Sourced by scripts/engines.
# shellcheck shell=bash disable=SC2154 # the variables set by scripts/engines and common.sh

rocketmq_version=5.4.0
rocketmq_copy=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies

rocketmq_home() { echo "$cache/rocketmq-$rocketmq_version"; }

# ---- questions in the remoting protocol: length, length of the header, header

# remoting_ask prints the start of the answer to a question. Usage: remoting_ask PORT CODE [NAME VALUE]..., the names in
# the order of the alphabet. A broker with access control gets it signed.
remoting_ask() {
  local port=$1 code=$2 fields='' header bytes
  shift 2
  if [ -s "$run/rocketmq/credentials" ]; then remoting_sign "$@"; set -- "${signed[@]}"; fi
  while [ $# -gt 0 ]; do
    fields="$fields,\"$1\":\"$2\""
    shift 2
  done
  header="{\"code\":$code,\"extFields\":{${fields#,}},\"flag\":0,\"language\":\"GO\",\"opaque\":1,\"version\":317}"
  printf -v bytes '\\x00\\x00\\x%02x\\x%02x\\x00\\x00\\x%02x\\x%02x' \
    $(((${#header} + 4) >> 8)) $(((${#header} + 4) & 255)) $((${#header} >> 8)) $((${#header} & 255))
  exchange "$port" "$bytes${header//%/%%}"
}

# remoting_sign sets "signed" to the given fields with the access key and the signature: an HMAC-SHA1 over the values in
# the order of their names. AccessKey comes first: capital letters do.
remoting_sign() {
  local access secret name text
  { read -r access; read -r secret; } <"$run/rocketmq/credentials"
  text=$access
  signed=(AccessKey "$access" "$@")
  for ((name = 1; name < $#; name += 2)); do text=$text${*:name+1:1}; done
  signed+=(Signature "$(printf %s "$text" | hmac_sha1 "$secret")")
}

# hmac_sha1 has the key in the environment: other users see a command's arguments.
hmac_sha1() { HMAC_KEY=$1 perl -MDigest::SHA=hmac_sha1_base64 -e 'local $/; print hmac_sha1_base64(scalar <STDIN>, $ENV{HMAC_KEY}), "="'; }

namesrv_answers() {
  [ -s "$run/namesrv.port" ] || return 1
  remoting_ask "$(<"$run/namesrv.port")" 206 | grep -aq topicList
}

# broker_registered: the name server has a route to this broker. TBW102 is the topic of which all brokers that may
# create topics are.
broker_registered() {
  [ -s "$run/broker.port" ] || return 1
  remoting_ask "$(<"$run/namesrv.port")" 105 topic TBW102 |
    grep -aq "127.0.0.1:$(<"$run/broker.port")"
}

# broker_answers: 30 asks for a queue's last offset, which the store must answer.
broker_answers() {
  [ -s "$run/broker.port" ] || return 1
  remoting_ask "$(<"$run/broker.port")" 30 queueId 0 topic TBW102 |
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
  broker_credentials
  port=$(choose_port "$run/broker.port" 10911 -2 1) # the ports of the "VIP channel" and of replication beside it
  broker_conf "$port" >"$run/rocketmq/broker.conf"
  rocketmq_java -Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m org.apache.rocketmq.broker.BrokerStartup -c "$run/rocketmq/broker.conf"
  launch broker "${server[@]}"
}

# broker_credentials keeps the administrator's name and password for the probes, of this call and of later ones; a broker
# that is started without any has no access control.
broker_credentials() {
  rm -f "$run/rocketmq/credentials"
  [ -n "${HALFBOX_ENGINES_ACCESS_KEY:-}${HALFBOX_ENGINES_SECRET_KEY:-}" ] || return 0
  [[ ${HALFBOX_ENGINES_ACCESS_KEY:-} =~ ^[A-Za-z0-9_.-]+$ && ${HALFBOX_ENGINES_SECRET_KEY:-} =~ ^[A-Za-z0-9_.-]+$ ]] ||
    fail "HALFBOX_ENGINES_ACCESS_KEY and HALFBOX_ENGINES_SECRET_KEY belong together, of letters, digits, '_', '.' and '-'"
  need perl perl
  (umask 077 && printf '%s\n' "$HALFBOX_ENGINES_ACCESS_KEY" "$HALFBOX_ENGINES_SECRET_KEY" >"$run/rocketmq/credentials")
}

# rocketmq_other_user: a user is asked for that the running broker was not started with.
rocketmq_other_user() {
  local access=
  if [ -s "$run/rocketmq/credentials" ]; then read -r access <"$run/rocketmq/credentials"; fi
  [ "${HALFBOX_ENGINES_ACCESS_KEY:-$access}" != "$access" ]
}

# broker_access_control prints the settings for the user of broker_credentials, who may do all.
broker_access_control() {
  local access secret authentication=org.apache.rocketmq.auth.authentication.provider authorization=org.apache.rocketmq.auth.authorization.provider
  [ -s "$run/rocketmq/credentials" ] || return 0
  { read -r access; read -r secret; } <"$run/rocketmq/credentials"
  cat <<CONF
authenticationEnabled=true
authenticationProvider=$authentication.DefaultAuthenticationProvider
authenticationMetadataProvider=$authentication.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"$access","password":"$secret"}
innerClientAuthenticationCredentials={"accessKey":"$access","secretKey":"$secret"}
authorizationEnabled=true
authorizationProvider=$authorization.DefaultAuthorizationProvider
authorizationMetadataProvider=$authorization.LocalAuthorizationMetadataProvider
CONF
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
  broker_access_control
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

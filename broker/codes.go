package broker

// Request codes (RocketMQ: org.apache.rocketmq.remoting.protocol.RequestCode).
const (
	codeSendMessage            = 10
	codePullMessage            = 11
	codeQueryMessage           = 12
	codeQueryConsumerOffset    = 14
	codeUpdateConsumerOffset   = 15
	codeCreateTopic            = 17
	codeSearchOffset           = 29
	codeGetMaxOffset           = 30
	codeGetMinOffset           = 31
	codeViewMessageByID        = 33
	codeHeartbeat              = 34
	codeUnregisterClient       = 35
	codeConsumerSendBack       = 36
	codeEndTransaction         = 37
	codeGetConsumerList        = 38
	codeCheckTransaction       = 39
	codeNotifyConsumersChanged = 40
	codeLockBatchMQ            = 41
	codeUnlockBatchMQ          = 42
	codeGetRoute               = 105
	codeGetClusterInfo         = 106
	codeGetProducerConnections = 204
	codeGetAllTopics           = 206
	codeSendMessageV2          = 310
	codeSendBatchMessage       = 320
)

// Response codes (RocketMQ: ResponseCode).
const (
	respSuccess              = 0
	respSystemError          = 1
	respNotSupported         = 3
	respMessageIllegal       = 13
	respServiceNotAvailable  = 14
	respNoPermission         = 16
	respTopicNotExist        = 17
	respPullNotFound         = 19
	respPullRetryImmediately = 20
	respPullOffsetMoved      = 21
	respQueryNotFound        = 22
)

// Message properties (RocketMQ: MessageConst).
const (
	propKeys              = "KEYS"
	propTags              = "TAGS"
	propDelayLevel        = "DELAY"
	propTimerDeliverMS    = "TIMER_DELIVER_MS"
	propTimerDelayMS      = "TIMER_DELAY_MS"
	propTimerDelaySec     = "TIMER_DELAY_SEC"
	propRetryTopic        = "RETRY_TOPIC"
	propRealTopic         = "REAL_TOPIC"
	propRealQueueID       = "REAL_QID"
	propTransaction       = "TRAN_MSG"
	propProducerGroup     = "PGROUP"
	propOriginMessageID   = "ORIGIN_MESSAGE_ID"
	propUniqKey           = "UNIQ_KEY"
	propCheckTimes        = "TRANSACTION_CHECK_TIMES"
	propCheckImmunity     = "CHECK_IMMUNITY_TIME_IN_SECONDS"
	propReconsumeTime     = "RECONSUME_TIME"
	propMaxReconsumeTimes = "MAX_RECONSUME_TIMES"
)

// Bits of a message's sysFlag (RocketMQ: MessageSysFlag).
const (
	sysFlagCompressed       = 0x1
	sysFlagTransactionMask  = 0xC
	sysFlagTransactionHalf  = 0x4
	sysFlagTransactionEnded = 0x8 // commit
	sysFlagRollback         = 0xC
	sysFlagBornHostV6       = 0x10
	sysFlagStoreHostV6      = 0x20
)

// Topics with a meaning of their own.
const (
	topicDefault    = "TBW102" // template of automatically created topics
	topicHalf       = "RMQ_SYS_TRANS_HALF_TOPIC"
	topicOpHalf     = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
	topicSchedule   = "SCHEDULE_TOPIC_XXXX"
	topicDiscarded  = "TRANS_CHECK_MAX_TIME_TOPIC"
	retryPrefix     = "%RETRY%"
	deadPrefix      = "%DLQ%"
	permRead        = 4
	permWrite       = 2
	protocolVersion = 317 // V4_9_4: clients then expect legal JSON from us
)

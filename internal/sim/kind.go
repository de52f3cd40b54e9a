package sim

// kind names a step, for the trace, its hash and the faults that wait for a certain step.
type kind uint8

const (
	kAppend kind = iota
	kFault
	kSupervise
	kStart
	kHeartbeat
	kSession
	kAssigned
	kTask
	kLoop
	kTick
	kRestore
	kWorker
	kCommit
	kSend
	kList
	kRead
	kWrite
	kFsync
	kLink
	kSyncDir
	kDelete
	kMarker
	kTxnTimeout
	kRequest
	kReply
	kApplyInit
	kApplyProduce
	kApplyOffsets
	kApplyEnd
	kApplyFetchOffsets
	kApplyFetch
	kApplyJoin
	kApplyHeartbeat
	kApplyRevoked
	kApplyLeave
	kApplyStart
	kApplyDescribe
	kApplyListTxns
	numKinds
)

var kindNames = [numKinds]string{
	kAppend: "append input", kFault: "fault", kSupervise: "supervise", kStart: "start", kHeartbeat: "heartbeat", kSession: "session check",
	kAssigned: "assignment callback", kTask: "task turn", kLoop: "loop turn", kTick: "timer", kRestore: "restore", kWorker: "worker", kCommit: "commit begins",
	kSend: "send batch", kList: "list directory", kRead: "read file", kWrite: "write file", kFsync: "fsync", kLink: "link", kSyncDir: "sync directory", kDelete: "delete file",
	kMarker: "write transaction marker", kTxnTimeout: "transaction timeout check", kRequest: "request", kReply: "reply", kApplyInit: "broker: InitProducerID",
	kApplyProduce: "broker: Produce", kApplyOffsets: "broker: TxnOffsetCommit", kApplyEnd: "broker: EndTxn",
	kApplyFetchOffsets: "broker: OffsetFetch", kApplyFetch: "broker: Fetch", kApplyJoin: "broker: JoinGroup",
	kApplyHeartbeat: "broker: Heartbeat", kApplyRevoked: "broker: rejoin after revoke", kApplyLeave: "broker: LeaveGroup",
	kApplyStart: "broker: ListOffsets", kApplyDescribe: "broker: DescribeGroups", kApplyListTxns: "broker: ListTransactions",
}

func (k kind) String() string { return kindNames[k] }

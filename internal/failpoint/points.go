package failpoint

// Point is the name of a moment between two steps.
type Point string

// The points. Names end in -before or -after; what the step is says Points.
const (
	BarrierBefore      Point = "barrier-before"
	BarrierAfter       Point = "barrier-after"
	FreezeBefore       Point = "freeze-before"
	FreezeAfter        Point = "freeze-after"
	DeltaBefore        Point = "delta-before"
	DeltaAfter         Point = "delta-after"
	FileFsyncBefore    Point = "file-fsync-before"
	FileFsyncAfter     Point = "file-fsync-after"
	RootFsyncBefore    Point = "root-fsync-before"
	RootFsyncAfter     Point = "root-fsync-after"
	RenameBefore       Point = "rename-before"
	RenameAfter        Point = "rename-after"
	DirFsyncBefore     Point = "dir-fsync-before"
	DirFsyncAfter      Point = "dir-fsync-after"
	FlushBefore        Point = "flush-before"
	FlushAfter         Point = "flush-after"
	PermitBefore       Point = "permit-before"
	PermitAfter        Point = "permit-after"
	OffsetsBefore      Point = "offsets-before"
	OffsetsAfter       Point = "offsets-after"
	EndTxnBefore       Point = "endtxn-before"
	EndTxnAfter        Point = "endtxn-after"
	AbortBefore        Point = "abort-before"
	AbortAfter         Point = "abort-after"
	CompleteBefore     Point = "complete-before"
	CompleteAfter      Point = "complete-after"
	ReleaseBefore      Point = "release-before"
	ReleaseAfter       Point = "release-after"
	MarkerBefore       Point = "marker-before"
	MarkerAfter        Point = "marker-after"
	LocalIntentBefore  Point = "local-intent-before"
	LocalIntentAfter   Point = "local-intent-after"
	LocalDataBefore    Point = "local-data-before"
	LocalDataAfter     Point = "local-data-after"
	LocalAppliedBefore Point = "local-applied-before"
	LocalAppliedAfter  Point = "local-applied-after"
	MergeBefore        Point = "merge-before"
	MergeAfter         Point = "merge-after"
	CleanBefore        Point = "clean-before"
	CleanAfter         Point = "clean-after"
	StartCommitBefore  Point = "start-commit-before"
	StartCommitAfter   Point = "start-commit-after"
	InitBefore         Point = "init-before"
	InitAfter          Point = "init-after"
	RestoreBefore      Point = "restore-before"
	RestoreAfter       Point = "restore-after"
	JoinBefore         Point = "join-before"
	JoinAfter          Point = "join-after"
	LeaveBefore        Point = "leave-before"
	LeaveAfter         Point = "leave-after"
	ImportBefore       Point = "import-before"
	ImportAfter        Point = "import-after"
	ClaimBefore        Point = "claim-before"
	ClaimAfter         Point = "claim-after"
	DisposeBefore      Point = "dispose-before"
	DisposeAfter       Point = "dispose-after"
	ForgetJoinBefore   Point = "forget-join-before"
	ForgetJoinAfter    Point = "forget-join-after"
	ForgetBefore       Point = "forget-before"
	ForgetAfter        Point = "forget-after"
	ForgetFileAfter    Point = "forget-file-after"
)

// Info describes a point.
type Info struct {
	Point Point
	Error bool   // the step can be made to report an error here
	Where string // one line: what has been done and what has not
}

// Points is the registry, in the order in which a checkpoint comes by, then the house-keeping, then a start.
var Points = []Info{
	{BarrierBefore, false, "a task has met the barrier and has done nothing about it"},
	{FreezeBefore, false, "the chain of a task has emitted what it owed; the state is not frozen"},
	{FreezeAfter, false, "the state is frozen; the sink does not hold back yet"},
	{BarrierAfter, false, "the sink holds back; the task has not acknowledged"},
	{DeltaBefore, true, "all tasks have acknowledged; the file of their changes does not exist"},
	{DeltaAfter, true, "the changes are in the buffer or in a temporary file"},
	{FileFsyncBefore, true, "a file that is no root is written under a temporary name and not synced"},
	{FileFsyncAfter, true, "such a file is synced and has no name yet"},
	{RootFsyncBefore, true, "a root is written under a temporary name and not synced"},
	{RootFsyncAfter, true, "a root is synced and has no name yet"},
	{RenameBefore, true, "a synced file of any kind is about to get its name"},
	{RenameAfter, true, "it has its name; the directory is not synced"},
	{DirFsyncBefore, true, "the directory is about to be synced"},
	{DirFsyncAfter, false, "file and name are durable; nobody knows"},
	{FlushBefore, false, "all tasks have passed the barrier; output is in the client's buffers"},
	{FlushAfter, false, "every record of the transaction is acknowledged"},
	{PermitBefore, false, "the root is durable; the coordinator has not heard"},
	{PermitAfter, false, "the coordinator has given the Permit; nothing is sent"},
	{OffsetsBefore, false, "positions and handles are about to be sent"},
	{OffsetsAfter, false, "the broker has them in the transaction"},
	{EndTxnBefore, false, "the commit is about to be sent"},
	{EndTxnAfter, false, "the broker has committed; the engine does not know"},
	{AbortBefore, false, "an abort is about to be sent"},
	{AbortAfter, false, "the transaction is aborted; the engine does not know"},
	{CompleteBefore, false, "the coordinator knows of the commit; nothing has followed from it"},
	{CompleteAfter, false, "the tasks have the notice in their inboxes; what follows runs beside"},
	{ReleaseBefore, false, "output held back behind the barrier is about to go on"},
	{ReleaseAfter, false, "it is in the next transaction"},
	{MarkerBefore, false, "a committed root has no marker"},
	{MarkerAfter, false, "the root has a marker beside it"},
	{LocalIntentBefore, true, "the local copy is about to write that it will change"},
	{LocalIntentAfter, true, "it is known to be changing; nothing has changed"},
	{LocalDataBefore, true, "the changes of one task are about to be written"},
	{LocalDataAfter, true, "they are written, those of other tasks perhaps not"},
	{LocalAppliedBefore, true, "all changes are synced; the copy still counts as changing"},
	{LocalAppliedAfter, true, "the copy counts as whole"},
	{MergeBefore, true, "a chain is verified; the file of its full run does not exist"},
	{MergeAfter, true, "the full run is durable; no root names it"},
	{CleanBefore, true, "the cleaner has decided and is about to delete a file"},
	{CleanAfter, true, "that file is gone, others perhaps not"},
	{InitBefore, false, "a start: the transactional ids are still those of the predecessor"},
	{InitAfter, false, "they are this process's own; what was open is aborted"},
	{StartCommitBefore, false, "partitions without a committed offset are about to get one: checkpoint 0"},
	{StartCommitAfter, false, "checkpoint 0 is committed; no record has been read"},
	{RestoreBefore, true, "the state of a task is about to be read"},
	{RestoreAfter, true, "it is in memory; no record has been read"},
	{JoinBefore, false, "partitions that came to a running instance are restored; its checkpoints do not have them yet"},
	{JoinAfter, false, "their tasks are part of the attempt; nothing of theirs is committed here"},
	{LeaveBefore, false, "tasks have had their last checkpoint; they are still there, what they held back is not dropped"},
	{LeaveAfter, false, "they have left; the group has not heard"},
	{ImportBefore, false, "a start from a savepoint: it is decided what every task takes from it; no state is read"},
	{ImportAfter, false, "the tasks run with the savepoint's state; their first checkpoint is not asked for"},
	{ClaimBefore, false, "the claimed savepoint is found to be needed no more; it is whole"},
	{DisposeBefore, false, "the metadata of a savepoint is about to be deleted"},
	{DisposeAfter, false, "it is gone durably; the data is there"},
	{ForgetJoinBefore, false, "a cancel that deletes: the instance has left the group, or the command has all replies; it has not looked who is there now"},
	{ForgetJoinAfter, false, "it is the only member of the group; it has not looked at files and positions"},
	{ForgetBefore, false, "a cancel that deletes: nobody is in the group, nobody can commit; the application is whole"},
	{ForgetAfter, false, "it is committed that no state belongs to the positions; all files are there"},
	{ForgetFileAfter, false, "one file of the application is deleted, others are not"},
	{ClaimAfter, false, "the claimed savepoint is gone; the engine has not heard"},
}

package element

// Delivery is what a source hands over at once: records of one partition, in offset order.
type Delivery struct {
	From    TopicPartition
	Records []Record
	// Next is the position after this delivery. It passes gaps that compaction left and transaction markers, so it may
	// be above the last record's offset + 1, and a delivery may carry no record at all.
	Next int64
	// LeaderEpoch is that of the record or marker right below Next, or a later one, as Position says; -1 if not known, as behind
	// a gap that was passed over unread.
	LeaderEpoch int32
	// Ended: the partition has reached its end. It is told once, with the last delivery of the partition, which may have no
	// record and a Next that does not move.
	Ended bool
}

package topology

// Parcel is a run of records on its way over an exchange, from one task to one subtask of the exchange's stage. Its
// records keep their Go types: nothing is encoded unless Encode is called.
//
// A parcel belongs to whoever holds it: the sending task until Env.Send, the engine after it, the receiving task from
// Task.Receive on, which recycles it. Keep and Encode are for the engine while it holds the parcel.
type Parcel interface {
	// Len is the number of records, above 0.
	Len() int
	// Size is an estimate of the bytes that the records hold in memory. It costs nothing.
	Size() int
	// Keep says that the parcel is also part of a snapshot: it is not recycled when it has been received. It must be
	// called before the parcel is given to Task.Receive.
	Keep()
	// Encode gives every record in encoded form, in order, with its key group, -1 when the record has none. data is
	// valid during the call only. A parcel that is kept may be encoded by any goroutine, beside its being received. An
	// error of fn is returned as it is; a record that cannot be encoded is a *RecordError.
	Encode(fn func(group int, data []byte) error) error
}

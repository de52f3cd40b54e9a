package checkpoint

import "github.com/millweir/millweir/element"

// Permit is the right to commit one checkpoint. Only a Coordinator makes valid ones, and only once the outputs are
// flushed, the state of every task and the root file are durable. Who commits asks for it as a parameter, so that no
// code path can commit without having gone through those steps. The zero value is invalid.
type Permit struct {
	id    element.CheckpointID
	valid bool
}

// Valid reports that a Coordinator handed it out.
func (p Permit) Valid() bool { return p.valid }

// ID is the checkpoint that may be committed, 0 when the Permit is not valid.
func (p Permit) ID() element.CheckpointID { return p.id }

// Allows reports that it is valid and for this checkpoint.
func (p Permit) Allows(id element.CheckpointID) bool { return p.valid && p.id == id }

// OffsetCommit is what a checkpoint commits for one source partition.
type OffsetCommit struct {
	// Epoch is the ownership epoch under which the partition was owned at the position.
	Epoch uint64

	// Position is S_n: everything below its offset is covered.
	Position element.Position
	// Metadata is the encoded handle that travels with the offset, at most 4096 bytes.
	Metadata string
}

// Commit is all that the committer needs: it makes the outputs of the open transaction, these offsets and their
// metadata visible in one step.
type Commit struct {
	Name    element.CheckpointName
	Offsets []OffsetCommit
	// Permit must allow Name.ID; a committer refuses anything else.
	Permit Permit
}

// RefusedError is the error of a commit that has not happened and will not: nothing of it is on the way any more.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap gives the refusal.
func (e *RefusedError) Unwrap() error { return e.Err }

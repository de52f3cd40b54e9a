package checkpointtest

import (
	"fmt"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
)

// Permit earns the Permit of a checkpoint (id >= 1) the way everybody has to: it takes a coordinator through all steps.
// There is no other way to one, not even for a test.
func Permit(id element.CheckpointID) checkpoint.Permit {
	t := element.TaskID{Source: "test"}
	c := checkpoint.New(checkpoint.Config{Interval: time.Hour, Timeout: time.Hour}, id-1)
	c.AddTask(0, t)
	c.Moved(0, t)
	c.RequestCheckpoint(0, checkpoint.Manual)
	c.BarrierPassed(0, id, t, checkpoint.TaskAck{Moved: true})
	c.Flushed(0, id)
	c.Persisted(0, id, checkpoint.PersistStats{})
	for _, a := range c.RootWritten(0, id) {
		if s, ok := a.(checkpoint.CommitAction); ok {
			return s.Permit
		}
	}
	panic(fmt.Sprintf("checkpoint %d got no permit", id))
}

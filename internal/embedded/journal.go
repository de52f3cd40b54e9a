package embedded

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/vfs"
)

// journal makes the end of a transaction whole across a kill. kfake writes the commit markers one after the other, then the
// offsets one after the other, and keeps no log of transactions. So the commit is noted before: one that has begun, which
// a marker shows, is completed by the repair. The note is that of the newest commit only, since kfake does one request after
// the other. It is used by kfake's goroutine, and before that starts.
type journal struct {
	path    string
	syncDir func(dir string) error // nil: writes are not synced
	staged  map[string]*commitNote // by transactional id: the offsets that its open transaction has sent
	noted   bool                   // there is a file, or may be one after a loss of power
}

// commitNote is what a transaction commits. Producer and epoch belong to it alone: each end gives the id a new epoch, or, for
// a client without transaction.version 2, the note goes when that client begins its next transaction with the same epoch.
type commitNote struct {
	Producer int64        `json:"producer"`
	Epoch    int16        `json:"epoch"`
	Offsets  []noteOffset `json:"offsets,omitempty"`
}

type noteOffset struct {
	Group     string   `json:"group"`
	Topic     string   `json:"topic,omitempty"` // or only its id
	TopicID   [16]byte `json:"topic_id"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Epoch     int32    `json:"leader_epoch"`
	Metadata  *string  `json:"metadata"`
}

const journalFile = "commit.json"

func newJournal(dir string, sync bool) *journal {
	j := &journal{path: filepath.Join(dir, journalFile), staged: map[string]*commitNote{}, noted: true}
	if sync {
		j.syncDir = vfs.SyncDir
	}
	return j
}

// watch has the journal see the requests that matter, before kfake handles them. One that cannot be noted is not done, and
// the client is to ask again: as of a coordinator that is away, or since its connection ends. kfake would forget the
// function with that, and do all later ones without a note, if it were not told to keep it.
func (j *journal) watch(c *kfake.Cluster, log *slog.Logger) {
	for _, key := range []kmsg.Key{
		kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.InitProducerID, // what a commit is
		kmsg.OffsetCommit, kmsg.OffsetDelete, kmsg.DeleteGroups, kmsg.DeleteTopics, // what changes its offsets later
		kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, // how transactions begin without transaction.version 2
	} {
		c.ControlKey(key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
			if err := j.see(req); err != nil {
				log.Error("a request is not done, since it cannot be noted; the client is to ask again", "request", key.Name(), "error", err)
				c.KeepControl()
				if end, ok := req.ResponseKind().(*kmsg.EndTxnResponse); ok {
					end.ErrorCode = kerr.CoordinatorNotAvailable.Code
					return end, nil, true
				}
				return nil, err, true
			}
			return nil, nil, false
		})
	}
}

func (j *journal) see(req kmsg.Request) error {
	switch r := req.(type) {
	case *kmsg.TxnOffsetCommitRequest:
		j.stage(r)
	case *kmsg.InitProducerIDRequest:
		if r.TransactionalID != nil {
			delete(j.staged, *r.TransactionalID)
		}
	case *kmsg.EndTxnRequest:
		note := j.staged[r.TransactionalID]
		if note == nil || note.Producer != r.ProducerID || note.Epoch != r.ProducerEpoch {
			note = &commitNote{Producer: r.ProducerID, Epoch: r.ProducerEpoch}
		}
		if r.Commit {
			if err := j.write(note); err != nil {
				return err // what is staged is for the next try
			}
		}
		delete(j.staged, r.TransactionalID)
	default:
		return j.forget() // the offsets, or what the epoch stands for, may be others from here on; the commit before is complete
	}
	return nil
}

// stage takes offsets of a transaction; later ones of a partition win, as they do in kfake.
func (j *journal) stage(r *kmsg.TxnOffsetCommitRequest) {
	note := j.staged[r.TransactionalID]
	if note == nil || note.Producer != r.ProducerID || note.Epoch != r.ProducerEpoch {
		note = &commitNote{Producer: r.ProducerID, Epoch: r.ProducerEpoch}
		j.staged[r.TransactionalID] = note
	}
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			note.Offsets = append(note.Offsets, noteOffset{
				Group: r.Group, Topic: t.Topic, TopicID: t.TopicID, Partition: p.Partition, Offset: p.Offset, Epoch: p.LeaderEpoch, Metadata: p.Metadata,
			})
		}
	}
}

func (j *journal) write(note *commitNote) error {
	b, err := json.Marshal(note)
	if err != nil {
		return err
	}
	f, err := os.Create(j.path + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && j.syncDir != nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(j.path+".tmp", j.path); err != nil {
		return err
	}
	j.noted = true
	return j.settle()
}

// settle makes the file's name, or that there is none, outlast a loss of power.
func (j *journal) settle() error {
	if j.syncDir == nil {
		return nil
	}
	return j.syncDir(filepath.Dir(j.path))
}

func (j *journal) forget() error {
	if !j.noted {
		return nil
	}
	err := ignoreMissing(os.Remove(j.path))
	if err == nil {
		err = j.settle()
	}
	j.noted = err != nil
	return err
}

// readNote gives the newest commit that was noted, nil when there is none. One that cannot be read was cut off by a loss of
// power, for which nothing is promised without synced writes.
func readNote(dir string) (*commitNote, error) {
	b, err := os.ReadFile(filepath.Join(dir, journalFile))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	note := &commitNote{}
	if json.Unmarshal(b, note) != nil {
		return nil, nil
	}
	return note, nil
}

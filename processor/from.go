package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// ClaimMode says whose a savepoint is that the service starts from.
type ClaimMode string

// The claim modes.
const (
	// NoClaim leaves the savepoint as it is: it belongs to whoever took it. The first checkpoint has all of the state.
	NoClaim ClaimMode = "no-claim"
	// Claim makes it the service's: when every task that it holds has a checkpoint of its own, it is disposed of.
	Claim ClaimMode = "claim"
)

// checkFrom checks the wish to start from a savepoint. Its names are those of the command's flags.
func (c Config) checkFrom(ms *mistakes) {
	word(ms, "--claim-mode", c.ClaimMode, NoClaim, Claim)
	if len(c.From) == 0 {
		if c.ClaimMode == Claim {
			ms.add("--claim-mode", "claim without --from: there is no savepoint to claim")
		}
		if c.AcceptDuplicates {
			ms.add("--accept-duplicates", "without --from: there is no savepoint to go back to")
		}
		return
	}
	for _, path := range c.From {
		if _, err := snapshot.SavepointPath(path); err != nil {
			ms.add("--from", "%s", err)
		}
	}
	if len(c.From) > snapshot.MaxOrigin {
		ms.add("--from", "%d directories, at most %d are possible", len(c.From), snapshot.MaxOrigin)
	}
	if c.RecoverFromStore {
		ms.add("--from", "excludes --recover-from-store: the state is the savepoint's or the store's")
	}
	if c.DisabledCheckpoints {
		ms.add("--from", "excludes checkpointing.interval disabled: the savepoint's state would be gone after the first failure")
	}
}

// from gives the engine the wish.
func (c Config) from() engine.From {
	return engine.From{Paths: c.From, Claim: c.ClaimMode == Claim, AcceptDuplicates: c.AcceptDuplicates}
}

// openFrom opens a savepoint to start from.
func (s *service) openFrom(ctx context.Context, path string) (engine.Savepoint, snapshot.SavepointRef, error) {
	at, err := snapshot.SavepointPath(path)
	if err != nil {
		return nil, snapshot.SavepointRef{}, err
	}
	if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
		return nil, snapshot.SavepointRef{}, fault.Stopf(fault.Usage, "there is no such directory: %w", err)
	}
	sp, err := snapshot.OpenSavepoint(ctx, at)
	if err != nil {
		return nil, snapshot.SavepointRef{}, err
	}
	return savepoint{sp}, sp.Ref, nil
}

// logFrom adds what tells of a start from a savepoint, and of what is let go.
func logFrom(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	var ignored atomic.Bool
	lis.StartedFrom = func(i engine.FromInfo) {
		for _, m := range i.Moved {
			log.Warn("GOING BACK TO A SAVEPOINT, as asked: a committed offset is given up", "input", m.TopicPartition.String(), "offset", m.From, "to", m.To, "what", m.String())
		}
		if i.Imported > 0 {
			for _, o := range i.Origin {
				log.Info("starting from a savepoint; nothing of it is committed before the first checkpoint", "savepoint", o.Path, "id", o.ID, "tasks", i.Imported)
			}
		}
		if i.Ignored > 0 && !ignored.Swap(true) { // each attempt would say it
			if i.Beyond > 0 {
				log.Warn(fmt.Sprintf("--from is ignored: this application took the savepoint itself and has gone on from it to checkpoint %d; to go back to it, with outputs repeating, add --accept-duplicates", i.Beyond),
					"tasks", i.Ignored, "checkpoint", i.Beyond)
			} else {
				log.Info("--from is ignored: what the group has committed comes from this savepoint already", "tasks", i.Ignored)
			}
		}
		call(user.StartedFrom, i)
	}
	lis.Dropped = func(d snapshot.DroppedStage) {
		log.Warn("state is let go, as allowed: nothing of the topology goes on with it", "stage", d.Stage, "states", d.States, "records_in_flight", d.InFlight, "checkpoint", d.Root.Name.String(), "from", d.Root.Path)
		call(user.Dropped, d)
	}
	lis.Claimed = func(paths []string, err error) {
		if err != nil {
			log.Warn("the claimed savepoint is not disposed of: dispose of it by hand", "error", err)
		}
		for _, path := range paths {
			log.Info("the claimed savepoint is disposed of: its state is in checkpoints of this service", "savepoint", path)
		}
		if user.Claimed != nil {
			user.Claimed(paths, err)
		}
	}
}

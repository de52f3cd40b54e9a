package main

import (
	"errors"
	"fmt"

	"github.com/millweir/millweir/snapshot"
)

// wayBack adds to a refusal or to damage the commands that show and go the way back, where there may be one.
func wayBack(err error, file string, recovering bool) error {
	var damage *snapshot.CorruptError
	refused := snapshot.RefusalOf(err)
	switch {
	case refused != nil && refused.Recoverable() && !recovering:
		return fmt.Errorf("%w; `processor checkpoints list %s` shows what the store has, `processor run %s --recover-from-store` starts from its newest committed checkpoint", err, file, file)
	case refused != nil && refused.Recoverable():
		return fmt.Errorf("%w; `processor checkpoints list %s` shows what the store has", err, file)
	case refused != nil || !errors.As(err, &damage):
		return err
	case damage.Kind == snapshot.KindStoreID:
		return fmt.Errorf("%w; nothing was overwritten: put the file back from a backup", err)
	case damage.Kind == snapshot.KindAnnouncement:
		return fmt.Errorf("%w; nothing was overwritten: put the file back from a backup, or delete it: the instance writes it anew when it starts", err)
	case recovering:
		return fmt.Errorf("%w; nothing was overwritten: `processor checkpoints verify %s` names all damage", err, file)
	}
	return fmt.Errorf("%w; nothing was overwritten: put the file back from a backup, or `processor checkpoints verify %s` names all damage and `processor run %s --recover-from-store` starts from the newest committed checkpoint that is whole", err, file, file)
}

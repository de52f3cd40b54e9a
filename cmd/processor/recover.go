package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/config"
	"github.com/millweir/millweir/snapshot"
)

// given is a service file with the settings that were given beside it, as a command names them: without them another command
// looks into another directory or asks for another application. Values of secrets are left out.
func given(file string, set []string, but ...string) string {
	var b strings.Builder
	b.WriteString(quoted(file))
	for _, s := range set {
		path, value, _ := strings.Cut(s, "=")
		if slices.Contains(but, path) {
			continue
		}
		if slices.ContainsFunc(config.Settings(), func(s config.Setting) bool { return s.Path == path && s.Secret }) {
			value = "…"
		}
		b.WriteString(" --set " + quoted(path+"="+value))
	}
	return b.String()
}

func (f *runFlags) given(file string) string {
	s := given(file, f.set)
	if f.embedded {
		s += " --embedded"
		if f.embeddedPort != defaultEmbeddedPort {
			s += fmt.Sprintf(" --embedded-port %d", f.embeddedPort)
		}
	}
	if f.start.allowDropped {
		s += " --allow-dropped-state"
	}
	return s
}

// quoted is an argument as a shell takes it.
func quoted(arg string) string {
	if arg != "" && !strings.ContainsFunc(arg, special) {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

func special(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_./=:,@%+…", r))
}

// wayBack adds to a refusal or to damage the commands that show and go the way back, where there may be one.
func wayBack(err error, file string, f *runFlags) error {
	var damage *snapshot.CorruptError
	refused := snapshot.RefusalOf(err)
	look, run := given(file, f.set), f.given(file)
	switch {
	case refused != nil && refused.Recoverable() && !f.recover:
		return fmt.Errorf("%w; `processor checkpoints list %s` shows what the store has, `processor run %s --recover-from-store` starts from its newest committed checkpoint", err, look, run)
	case refused != nil && refused.Recoverable():
		return fmt.Errorf("%w; `processor checkpoints list %s` shows what the store has", err, look)
	case refused != nil || !errors.As(err, &damage):
		return err
	case damage.Kind == snapshot.KindStoreID:
		return fmt.Errorf("%w; nothing was overwritten: put the file back from a backup", err)
	case damage.Kind == snapshot.KindAnnouncement:
		return fmt.Errorf("%w; nothing was overwritten: put the file back from a backup, or delete it: the instance writes it anew when it starts", err)
	case len(f.start.from) > 0: // either may be what is damaged
		return fmt.Errorf("%w; nothing was overwritten: `processor savepoint inspect %s` names all damage of the savepoint, `processor checkpoints verify %s` that of the checkpoints, if there are any; start from another savepoint", err, quoted(f.start.from[0]), look)
	case f.recover:
		return fmt.Errorf("%w; nothing was overwritten: `processor checkpoints verify %s` names all damage", err, look)
	}
	return fmt.Errorf("%w; nothing was overwritten: put the file back from a backup, or `processor checkpoints verify %s` names all damage and `processor run %s --recover-from-store` starts from the newest committed checkpoint that is whole", err, look, run)
}

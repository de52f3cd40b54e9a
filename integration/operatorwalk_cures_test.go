//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
)

// cure is one way out that a message names.
type cure struct {
	name   string
	says   *regexp.Regexp
	backup bool // it takes something that the operator must have
	do     func(w *operatorWalk, line string) way
}

// says are the texts of messages that name something to do. Commands in backquotes are taken from the message instead.
var cures = []cure{
	{"put files back", regexp.MustCompile(`from a backup|restore it|set state\.checkpoints\.dir to|right directory|put the file`), true, func(w *operatorWalk, _ string) way {
		return w.back("file", "topology")
	}},
	{"put offsets back", regexp.MustCompile(`put (the newer offsets|them|the offsets|it) |set it back|restore the original offsets|put the offset and its metadata back|restore the missing offset|offsets .*put .* back`), true, func(w *operatorWalk, _ string) way {
		return w.back("offsets")
	}},
	{"undo the change", regexp.MustCompile(`undo the change|rename the source back|restore the (step|source)|give (the source|it) back|give the topology (its|one of its)|set an interval|take its topic out|go back to (what|the old)|give the exchange another`), true, func(w *operatorWalk, _ string) way {
		return w.back("topology")
	}},
	{"let go", regexp.MustCompile(`--allow-dropped-state`), false, func(w *operatorWalk, line string) way {
		if strings.Contains(line, "delete the group's offsets of this topic") {
			w.deleteOffsetsIn(line)
		}
		w.book.allow(anyhow, "state is let go")
		return way{args: []string{"--allow-dropped-state"}}
	}},
	{"another application", regexp.MustCompile(`under another application name|another application name|application name of its own`), false, func(w *operatorWalk, _ string) way {
		w.now.app = w.name(w.name0() + "-n")
		w.write()
		w.book.begin()
		return way{}
	}},
	{"move away and delete offsets", regexp.MustCompile(`move the checkpoint directory away and delete the group's offsets`), false, func(w *operatorWalk, _ string) way {
		w.directoryGoes()
		w.deleteOffsets()
		w.book.begin()
		return way{}
	}},
	{"delete all offsets", regexp.MustCompile(`delete all (offsets of group|of the task's offsets)`), false, func(w *operatorWalk, line string) way {
		w.deleteOffsets()
		w.book.recovers()
		return way{args: []string{"--recover-from-store"}}
	}},
	{"delete offsets", regexp.MustCompile(`stop it, and delete the group's offsets or|were copied; delete them`), false, func(w *operatorWalk, _ string) way {
		w.deleteOffsets()
		return way{}
	}},
	{"reset", regexp.MustCompile(`reset the application`), false, func(w *operatorWalk, _ string) way {
		w.reset()
		return way{}
	}},
	{"create", regexp.MustCompile(`create (it|them)`), false, func(w *operatorWalk, _ string) way {
		for _, topic := range w.now.topics() {
			w.ensure(topic)
		}
		return way{}
	}},
	{"wait", regexp.MustCompile(`session.timeout|try again|[Ss]tart again|reset again|cancel again|was deleted, or deleted and created again, while`), false, func(w *operatorWalk, _ string) way {
		w.rest()
		return way{}
	}},
	{"delete the file", regexp.MustCompile(`or delete it`), false, func(w *operatorWalk, line string) way {
		for _, path := range w.bad {
			if strings.Contains(line, filepath.Base(path)) {
				require.NoError(w.t, os.Remove(path))
			}
		}
		return way{}
	}},
	{"from a savepoint", regexp.MustCompile(`[Ss]tart from (a|another) savepoint|accept that outputs repeat|--accept-duplicates`), false, func(w *operatorWalk, _ string) way {
		if len(w.saves) == 0 {
			return way{}
		}
		w.book.allow(anyhow, "a savepoint")
		return way{args: []string{"--from", pick(w.rnd, w.saves), "--accept-duplicates"}}
	}},
	{"at-least-once again", regexp.MustCompile(`start once more in that mode`), false, func(w *operatorWalk, _ string) way {
		w.now.mode = "at-least-once"
		w.write()
		w.book.allow(anyhow, "at-least-once")
		w.book.loose = true
		return way{}
	}},
	{"checkpoints on", regexp.MustCompile(`excludes checkpointing.interval disabled`), false, func(w *operatorWalk, _ string) way {
		w.now.mode = ""
		w.write()
		return way{}
	}},
	{"leave --from out", regexp.MustCompile(`leave --from out|start without --from|this one without --from`), false, func(w *operatorWalk, _ string) way { return way{} }},
}

var commands = regexp.MustCompile("`(processor [^`]+)`")

// wayOut takes one of the ways that a message names, at random. An operator without backups takes one of them only where
// nothing else is named.
func (w *operatorWalk) wayOut(code int, line string) way {
	var named, last []cure
	prose := commands.ReplaceAllString(line, "")
	for _, c := range cures {
		switch {
		case !c.says.MatchString(prose):
		case c.backup && !w.backups:
			last = append(last, c)
		default:
			named = append(named, c)
		}
	}
	for _, m := range commands.FindAllStringSubmatch(line, -1) {
		if c, ok := w.commandOf(m[1]); ok {
			named = append(named, c)
		}
	}
	if len(named) == 0 {
		named = last
	}
	require.NotEmpty(w.t, named, "nothing that can be done is named: %d, %s", code, line)
	c := pick(w.rnd, named)
	w.say("  way out: %s", c.name)
	w.counts["way: "+c.name]++
	return c.do(w, line)
}

// commandOf makes a cure of a command in a message.
func (w *operatorWalk) commandOf(text string) (cure, bool) {
	words := strings.Fields(text)
	switch words[1] {
	case "run":
		return cure{name: "run as said", do: func(*operatorWalk, string) way { return w.runAsSaid(text) }}, true
	case "reset":
		return cure{name: "reset as said", do: func(*operatorWalk, string) way {
			w.rest()
			p := w.shell(text + " --yes")
			code := p.exit(60 * 1e9)
			w.say("  %s: %d %s", text, code, p.stderr.tail(1))
			w.saneEnd(p, code)
			require.Contains(w.t, []int{0, 22}, code, p.stderr.tail(1)) // 22: something of what is damaged stays, and is named
			w.book.begin()
			return way{}
		}}, true
	}
	p := w.shell(text) // it shows something
	code := p.exit(60 * 1e9)
	w.saneEnd(p, code)
	require.Contains(w.t, []int{0, 22}, code, "%s: %s", text, p.stderr.tail(1))
	return cure{}, false
}

func (w *operatorWalk) runAsSaid(text string) way {
	if strings.Contains(text, "application=NAME") {
		w.now.app = w.name(w.name0() + "-n")
		w.write()
		w.book.begin()
		text = strings.ReplaceAll(text, "NAME", w.now.app)
	}
	if strings.Contains(text, "--from …") { // as given
		text = strings.ReplaceAll(text, "--from …", "--from "+w.from)
		w.book.allow(anyhow, "a savepoint")
	}
	if strings.Contains(text, "--recover-from-store") {
		w.book.recovers()
	}
	if strings.Contains(text, "--allow-dropped-state") {
		w.book.allow(anyhow, "state is let go")
	}
	return way{command: text}
}

// back undoes the last things that were done of some kinds.
func (w *operatorWalk) back(kinds ...string) way {
	for _, u := range slices.Backward(w.undo) {
		if slices.Contains(kinds, u.kind) {
			u.back()
		}
	}
	w.undo = slices.DeleteFunc(w.undo, func(u undoing) bool { return slices.Contains(kinds, u.kind) })
	w.write()
	return way{}
}

// deleteOffsetsIn deletes the group's offsets of the topics that a message names.
func (w *operatorWalk) deleteOffsetsIn(line string) {
	all := w.offsets()
	for _, topic := range w.now.topics() {
		if !regexp.MustCompile(regexp.QuoteMeta(topic) + `\b`).MatchString(line) {
			delete(all, topic)
		}
	}
	w.loseOffsets(all, "the named")
}

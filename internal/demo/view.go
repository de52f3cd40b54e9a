package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	paintEvery = 250 * time.Millisecond
	lineEvery  = 2 * time.Second
	eventLines = 4 // of the view in place
)

// status is what the view shows at one moment.
type status struct {
	elapsed    time.Duration
	in, out    int64
	checkpoint uint64
}

func (r *run) status() status {
	out, _ := r.tail.read()
	return status{elapsed: time.Since(r.start), in: r.prod.acked.Load(), out: out, checkpoint: r.checkpoint.Load()}
}

// view shows a run: repainted in place on a terminal, else as lines. Its methods may be called from any goroutine.
type view struct {
	out     io.Writer
	inPlace bool
	quiet   bool
	total   time.Duration
	planned int
	read    func() status

	mu      sync.Mutex
	done    []Kill
	events  []string
	painted int // lines to go up before the next painting
	rates   rates
}

func newView(cfg Config, read func() status) *view {
	return &view{out: cfg.Out, quiet: cfg.Quiet, inPlace: !cfg.Plain && isTerminal(cfg.Out),
		total: cfg.Duration, planned: cfg.Kills, read: read}
}

// head tells what this run is about, once.
func (v *view) head(r *run) {
	if v.quiet {
		return
	}
	kind := "the embedded broker"
	if r.broker == nil {
		kind = "Kafka"
	}
	fmt.Fprintf(v.out, "seed %d, %s at %s, files in %s\n", r.cfg.Seed, kind, strings.Join(r.kafka.Brokers, ","), r.result.Dir)
	if r.cfg.Sabotage != "" {
		fmt.Fprintf(v.out, "planted fault: %s; the check must find it\n", r.cfg.Sabotage)
	}
	fmt.Fprintln(v.out)
}

// isTerminal says whether painting in place makes sense.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// run paints until ctx ends, and once more then.
func (v *view) run(ctx context.Context) {
	if v.quiet {
		return
	}
	every := lineEvery
	if v.inPlace {
		every = paintEvery
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			v.paint()
			return
		case <-ticker.C:
			v.paint()
		}
	}
}

// say tells an event.
func (v *view) say(format string, args ...any) {
	if v.quiet {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	line := fmt.Sprintf("%6.1fs  %s", v.read().elapsed.Seconds(), fmt.Sprintf(format, args...))
	if !v.inPlace {
		fmt.Fprintln(v.out, line)
		return
	}
	v.events = append(v.events, line)
	v.events = v.events[max(0, len(v.events)-eventLines):]
}

func (v *view) addKill(k Kill) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done = append(v.done, k)
}

func (v *view) recovered(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done[len(v.done)-1].Recovery = d
}

func (v *view) kills() []Kill {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]Kill{}, v.done...)
}

func (v *view) paint() {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.read()
	inRate, outRate := v.rates.add(s)
	if !v.inPlace {
		fmt.Fprintln(v.out, v.line(s, inRate, outRate))
		return
	}
	var b strings.Builder
	if v.painted > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.painted)
	}
	lines := v.lines(s, inRate, outRate)
	b.WriteString("\x1b[?7l") // no wrapping: a line that is too long for the terminal must stay one line
	for _, l := range lines {
		b.WriteString("\r" + l + "\x1b[K\n")
	}
	b.WriteString("\x1b[?7h")
	v.painted = len(lines)
	_, _ = io.WriteString(v.out, b.String()) // a terminal that is gone is no reason to stop
}

// line is the state as one line.
func (v *view) line(s status, inRate, outRate int64) string {
	l := fmt.Sprintf("%6.1fs  orders %s (%s/s)  totals %s (%s/s)", s.elapsed.Seconds(), group(s.in), group(inRate), group(s.out), group(outRate))
	if s.checkpoint > 0 {
		l += fmt.Sprintf("  checkpoint %d", s.checkpoint)
	}
	return l + fmt.Sprintf("  kills %d/%d", len(v.done), v.planned)
}

// lines is the state as a block of a fixed number of lines.
func (v *view) lines(s status, inRate, outRate int64) []string {
	checkpoint := "-"
	if s.checkpoint > 0 {
		checkpoint = fmt.Sprint(s.checkpoint)
	}
	recovery := "-"
	if len(v.done) > 0 {
		recovery = recoveries(v.done)
	}
	lines := []string{
		fmt.Sprintf("  elapsed     %.1f s of %.0f s", s.elapsed.Seconds(), v.total.Seconds()),
		fmt.Sprintf("  orders      %-12s %s/s", group(s.in), group(inRate)),
		fmt.Sprintf("  totals      %-12s %s/s", group(s.out), group(outRate)),
		fmt.Sprintf("  checkpoint  %s", checkpoint),
		fmt.Sprintf("  kill -9     %d of %d", len(v.done), v.planned),
		fmt.Sprintf("  recovery    %s", recovery),
		"",
	}
	for i := range eventLines {
		event := ""
		if i < len(v.events) {
			event = v.events[i]
		}
		lines = append(lines, event)
	}
	return lines
}

// recoveries lists the recovery times, cut to the newest ones that fit a line.
func recoveries(kills []Kill) string {
	const most = 8
	var parts []string
	if len(kills) > most {
		parts = append(parts, "…")
		kills = kills[len(kills)-most:]
	}
	for _, k := range kills {
		if k.Recovery == 0 {
			parts = append(parts, "running…")
			continue
		}
		parts = append(parts, short(k.Recovery))
	}
	return strings.Join(parts, "  ")
}

// rates smooths over the last seconds.
type rates struct{ past []status }

const rateWindow = 3 * time.Second

func (r *rates) add(s status) (in, out int64) {
	for len(r.past) > 1 && s.elapsed-r.past[0].elapsed > rateWindow {
		r.past = r.past[1:]
	}
	r.past = append(r.past, s)
	first := r.past[0]
	secs := (s.elapsed - first.elapsed).Seconds()
	if secs <= 0 {
		return 0, 0
	}
	return int64(float64(s.in-first.in) / secs), int64(float64(s.out-first.out) / secs)
}

// group writes a number with commas.
func group(n int64) string {
	s := fmt.Sprint(n)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short writes a duration as people read it.
func short(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

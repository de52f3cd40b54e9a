package topology_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

type (
	in  = topology.Rec[string, string]
	out = topology.Collector[string, string]
)

// script is a Processor whose records say what to do: words, done one after the other.
type script struct {
	text   *topology.Value[string]
	number *topology.Value[int64]
	held   []string
	log    *[]string
	open   func(*topology.ProcessContext) error
}

func (s *script) Open(ctx *topology.ProcessContext) error {
	s.note("open %s planning=%v", ctx.Task(), ctx.Planning())
	s.text = topology.ValueState(ctx, "text", serde.String())
	s.number = topology.ValueState(ctx, "number", serde.Int64())
	if s.open != nil {
		return s.open(ctx)
	}
	return nil
}

func (s *script) Close() error {
	s.note("close")
	return nil
}

func (s *script) note(format string, args ...any) {
	if s.log != nil {
		*s.log = append(*s.log, fmt.Sprintf(format, args...))
	}
}

func (s *script) Process(_ *topology.ProcessContext, r *in, c *out) error {
	if r.Tombstone {
		c.EmitTombstone().SetHeader("was", []byte("tombstone"))
		return nil
	}
	for _, word := range strings.Fields(r.Value) {
		switch {
		case word == "fail":
			return errors.New("as told")
		case word == "panic":
			panic("as told")
		case word == "clear":
			s.text.Clear()
			s.number.Clear()
		case word == "get":
			text, ok := s.text.Get()
			n, ok2 := s.number.Get()
			c.Emit(fmt.Sprintf("%q %v %d %v", text, ok, n, ok2))
		case word == "hold":
			before, _ := s.text.Get()
			s.text.Set("one")
			between, _ := s.text.Get()
			s.text.Set("two")
			c.Emit(before + "," + between)
			s.held = append(s.held, before, between)
		case word == "move":
			e := c.Emit("moved")
			e.Key, e.RawKey, e.Offset, e.Timestamp = "x", []byte("x"), 77, 5
			e.AddHeader("h", nil)
		case word == "flood":
			for range topology.MaxOutputsPerRecord + 1 {
				c.Emit("")
			}
		case strings.HasPrefix(word, "emit"):
			for range len(word) - 3 {
				c.Emit("e")
			}
		default:
			s.text.Set(word)
			s.number.Set(int64(len(word)))
		}
	}
	return nil
}

func scripted(log *[]string, open func(*topology.ProcessContext) error, opts ...topology.SourceOption) *topology.Builder {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String(), opts...)
	p := topology.Process(s, "proc", func() topology.Processor[string, string, string] { return &script{log: log, open: open} })
	topology.ToTopic(p, "out", "out", serde.String(), serde.String())
	return b
}

func TestProcessKeepsStatePerKey(t *testing.T) {
	task, env := drive(t, scripted(nil, nil))
	require.NoError(t, task.Process(from, []element.Record{
		kv(0, "a", "get"), kv(1, "a", "hello get"), kv(2, "b", "get"), kv(3, "a", "get"), kv(4, "a", "x clear get"), kv(5, "a", "get"),
		kv(6, "b", "yy"), kv(7, "b", "clear zzz"),
	}))
	require.Equal(t, []string{
		`a="" false 0 false`, `a="hello" true 5 true`, `b="" false 0 false`, `a="hello" true 5 true`, `a="" false 0 false`, `a="" false 0 false`,
	}, pairs(env.Out[0]))
	require.Equal(t, []string{"proc/text", "proc/number"}, env.Opened)
	require.Equal(t, 1, env.Tables["proc/text"].Len())
	raw, ok := env.Tables["proc/text"].Get([]byte("b"))
	require.True(t, ok)
	require.Equal(t, "zzz", string(raw))
}

// TestValuesReadFromStateLast: a string read from state must not change with the state.
func TestValuesReadFromStateLast(t *testing.T) {
	p := &script{}
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Process(s, "proc", func() topology.Processor[string, string, string] { return p }), "out", "out", serde.String(), serde.String())
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{kv(0, "k", "old"), kv(1, "k", "hold"), kv(2, "k", "new"), kv(3, "k", "hold")}))
	require.Equal(t, []string{"k=old,one", "k=new,one"}, pairs(env.Out[0]))
	require.Equal(t, []string{"old", "one", "new", "one"}, p.held)
}

func TestProcessOfAFailedRecordLeavesNoTrace(t *testing.T) {
	task, env := drive(t, scripted(nil, nil, topology.OnError(topology.Skip)))
	require.NoError(t, task.Process(from, []element.Record{
		kv(0, "k", "one"), kv(1, "k", "two emit fail"), kv(2, "k", "three emit panic"), kv(3, "k", "clear fail"), kv(4, "k", "flood"),
		kv(5, "k", "get"), rec(6, nil, []byte("get")),
	}))
	require.Equal(t, []string{`k="one" true 3 true`}, pairs(env.Out[0]))
	require.Len(t, env.Skips, 5)
	require.EqualError(t, env.Skips[0].Reason, "topic in partition 3 offset 1: step proc: as told")
	require.EqualError(t, env.Skips[1].Reason, "topic in partition 3 offset 2: step proc: panic: as told")
	require.ErrorIs(t, env.Skips[3].Reason, topology.ErrTooManyOutputs)
	require.ErrorIs(t, env.Skips[4].Reason, topology.ErrNullKey)
}

func TestProcessEmitsAnyNumber(t *testing.T) {
	task, env := drive(t, scripted(nil, nil))
	h := element.Header{Key: "h0", Value: []byte("v")}
	many := "emit" + strings.Repeat("t", 1999)
	require.NoError(t, task.Process(from, []element.Record{
		kv(0, "k", many), kv(1, "k", ""), rec(2, []byte("k"), []byte("move"), h), rec(3, []byte("k"), nil, h), kv(4, "k", many),
	}))
	require.Len(t, env.Out[0], 4002)
	moved := env.Out[0][2000]
	require.Equal(t, element.Record{
		Key: []byte("k"), Value: []byte("moved"), Offset: 2, Timestamp: 5, Headers: []element.Header{h, {Key: "h"}},
	}, moved)
	gone := env.Out[0][2001]
	require.Nil(t, gone.Value)
	require.Equal(t, []element.Header{h, {Key: "was", Value: []byte("tombstone")}}, gone.Headers)
	require.Greater(t, env.Emits, 1, "outputs are handed on in segments")
}

func TestProcessLifecycle(t *testing.T) {
	var log []string
	b := scripted(&log, nil)
	p, err := b.Plan()
	require.NoError(t, err)
	require.Equal(t, []string{"open src--1 planning=true"}, log)
	require.Equal(t, []topology.StatePlan{
		{Source: "src", Step: "proc", Name: "text", KeyCodec: "string", Codec: "string"},
		{Source: "src", Step: "proc", Name: "number", KeyCodec: "string", Codec: "int64"},
	}, p.States)
	log = nil
	for i := range int32(2) {
		task, err := p.NewTask("src", i, newMemEnv())
		require.NoError(t, err)
		require.NoError(t, task.Close())
		require.NoError(t, task.Close())
	}
	require.Equal(t, []string{"open src-0 planning=false", "close", "open src-1 planning=false", "close"}, log)
}

func TestProcessorsThatCannotBePlanned(t *testing.T) {
	for want, open := range map[string]func(*topology.ProcessContext) error{
		"opening it to learn its states: no":        func(*topology.ProcessContext) error { return errors.New("no") },
		"opening it to learn its states: panic: no": func(*topology.ProcessContext) error { panic("no") },
		`opening it to learn its states: state "text": declared twice`: func(ctx *topology.ProcessContext) error {
			topology.ValueState(ctx, "text", serde.Bytes())
			return nil
		},
		`opening it to learn its states: state "a b": a name matches ^[A-Za-z0-9._-]{1,128}$`: func(ctx *topology.ProcessContext) error {
			topology.ValueState(ctx, "a b", serde.Bytes())
			return nil
		},
		`opening it to learn its states: state "x": the serde is nil`: func(ctx *topology.ProcessContext) error {
			topology.ValueState[int64](ctx, "x", nil)
			return nil
		},
		`opening it to learn its states: state used: keyed state used outside of Process`: func(ctx *topology.ProcessContext) error {
			topology.ValueState(ctx, "used", serde.Int64()).Set(1)
			return nil
		},
	} {
		_, err := scripted(nil, open).Plan()
		var perr *topology.PlanError
		require.ErrorAs(t, err, &perr, want)
		require.Equal(t, []topology.Problem{{Kind: "step", Name: "proc", Text: want}}, perr.Problems)
	}
}

func TestATaskThatCannotBeBuiltClosesWhatItOpened(t *testing.T) {
	var log []string
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	late := topology.Process(s, "late", func() topology.Processor[string, string, string] {
		return &script{open: func(ctx *topology.ProcessContext) error {
			if ctx.Planning() {
				return nil
			}
			return errors.New("no connection")
		}}
	})
	topology.Process(late, "early", func() topology.Processor[string, string, string] { return &script{log: &log} })
	p, err := b.Plan()
	require.NoError(t, err)
	log = nil
	_, err = p.NewTask("src", 0, newMemEnv())
	require.EqualError(t, err, "task src-0: open step late: no connection")
	require.Equal(t, []string{"open src-0 planning=false", "close"}, log)
}

func TestStatesMustBeThoseOfThePlan(t *testing.T) {
	b := scripted(nil, func(ctx *topology.ProcessContext) error {
		if !ctx.Planning() {
			topology.ValueState(ctx, "more", json.Of[int]())
		}
		return nil
	})
	p, err := b.Plan()
	require.NoError(t, err)
	_, err = p.NewTask("src", 0, newMemEnv())
	require.ErrorContains(t, err, `state "more" with codec "json" was not declared when the topology was planned`)

	other := newMemEnv()
	other.Codecs["proc/text"] = "json"
	_, err = p.NewTask("src", 0, other)
	require.EqualError(t, err, "task src-0: open state proc/text@string: state proc/text has codec json, not string")
}

type closesBadly struct{ emitter }

func (closesBadly) Close() error { panic("at the end") }

func TestAPanicInCloseIsAnError(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), json.Any())
	topology.Process(s, "proc", func() topology.Processor[string, any, string] { return closesBadly{} })
	p, err := b.Plan()
	require.NoError(t, err)
	task, err := p.NewTask("src", 0, newMemEnv())
	require.NoError(t, err)
	require.EqualError(t, task.Close(), "close step proc: panic: at the end")
}

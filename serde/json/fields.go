package json

import "slices"

// linearNames is up to how many names are compared one by one.
const linearNames = 8

// Fields decodes some fields of objects and passes over the others. It is immutable and may be shared.
type Fields struct {
	names []string
	index map[string]int // nil when there are few
}

// NewFields gives the decoder of the fields with these names, which differ from each other.
func NewFields(names ...string) *Fields {
	f := &Fields{names: slices.Clone(names)}
	if len(names) > linearNames {
		f.index = make(map[string]int, len(names))
		for i, n := range names {
			f.index[n] = i
		}
	}
	return f
}

// Len is the number of fields.
func (f *Fields) Len() int { return len(f.names) }

// Decode reads one object and sets out[i] to its field with name i, which stays as it is when the object has none; the
// last of repeated fields wins. out has Len elements. All of b is checked: an error is the one that Any gives. When b
// holds no object, object is false and nothing else was done; Any decodes it.
func (f *Fields) Decode(b []byte, out []Value) (object bool, err error) {
	p := parser{in: b}
	if p.peek() != '{' {
		return false, nil
	}
	if err := p.fields(f, out); err != nil {
		return true, err
	}
	if p.space(); p.at < len(p.in) {
		return true, p.fail("bytes left over behind the value")
	}
	return true, nil
}

// find gives the index of a name, -1 when it is not wanted.
func (f *Fields) find(name string) int {
	if f.index != nil {
		if i, ok := f.index[name]; ok {
			return i
		}
		return -1
	}
	for i := range f.names {
		if f.names[i] == name {
			return i
		}
	}
	return -1
}

// fields reads an object whose brace is next.
func (p *parser) fields(f *Fields, out []Value) error {
	more, err := p.open(1, '}')
	for more && err == nil {
		var key string
		if key, err = p.key(); err != nil {
			break
		}
		if i := f.find(key); i >= 0 {
			err = p.into(1, &out[i])
		} else {
			err = p.skip(1)
		}
		if err != nil {
			break
		}
		more, err = p.next('}')
	}
	return err
}

// into is value, into a Value.
func (p *parser) into(depth int, v *Value) error {
	switch c := p.peek(); {
	case c == '"':
		s, err := p.string()
		*v = TextValue(s)
		return err
	case c == '-' || c >= '0' && c <= '9':
		return p.numberInto(v)
	}
	a, err := p.value(depth)
	*v = ValueOf(a)
	return err
}

// skip moves behind a value and checks it as value does.
func (p *parser) skip(depth int) error {
	switch c := p.peek(); {
	case c == '"':
		_, err := p.string()
		return err
	case c == '-' || c >= '0' && c <= '9':
		_, err := p.numberEnd()
		return err
	case c == '{':
		return p.skipAll(depth+1, '}')
	case c == '[':
		return p.skipAll(depth+1, ']')
	}
	_, err := p.value(depth)
	return err
}

// skipAll moves behind an object or array.
func (p *parser) skipAll(depth int, closing byte) error {
	more, err := p.open(depth, closing)
	for more && err == nil {
		if closing == '}' {
			if _, err = p.key(); err != nil {
				break
			}
		}
		if err = p.skip(depth); err != nil {
			break
		}
		more, err = p.next(closing)
	}
	return err
}

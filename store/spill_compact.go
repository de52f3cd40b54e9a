package store

// compaction moves the blocks that are still named out of a file of which most is superseded.
type compaction struct {
	file  *spillFile
	table int
	hash  uint64 // the next bucket to look at
}

// compactSpill moves up to so many bytes.
func (s *Store) compactSpill(most int64) error {
	sp := s.spill
	c := &sp.compact
	for most > 0 && len(sp.log.files) > 0 {
		if c.file != nil && c.file.live > 0 && c.table < len(s.tables) {
			n, err := s.moveBlocks(c)
			if err != nil {
				return err
			}
			most -= n
			continue
		}
		sp.log.tidy()
		if *c = (compaction{file: sp.log.worst()}); c.file == nil {
			return nil
		}
	}
	return nil
}

// moveBlocks moves some blocks and gives what that was in bytes, buckets looked at included.
func (s *Store) moveBlocks(c *compaction) (bytes int64, err error) {
	sp := s.spill
	x := s.tables[c.table].spill
	if x == nil {
		c.table, c.hash = c.table+1, 0
		return 1, nil
	}
	var out, buf []byte
	var made []madeBucket
	var old []*bucket
	for c.hash < 1<<32 && len(out) < evictWrite/4 && bytes < evictWrite/4 {
		h := uint32(c.hash)
		b := x.at(h)
		c.hash = uint64(b.last(h)) + 1
		bytes += 16
		if b.n == 0 || b.file != c.file {
			continue
		}
		if buf, err = readBlock(b, buf); err != nil {
			sp.breakdown(err)
			return bytes, err
		}
		n := *b
		made = append(made, madeBucket{prefix: h, at: len(out), b: &n})
		old = append(old, b)
		out = append(out, buf...)
	}
	if c.hash == 1<<32 {
		c.table, c.hash = c.table+1, 0
	}
	if len(out) == 0 {
		return bytes, nil
	}
	file, off, err := sp.log.append(out)
	if err != nil {
		c.file = nil // from the beginning
		return bytes, err
	}
	for i, m := range made {
		m.b.file, m.b.off = file, off+int64(m.at)
		x.put(m.prefix, m.b)
		sp.log.named(m.b)
		sp.log.unnamed(old[i])
	}
	sp.moved += len(made)
	return bytes + int64(len(out)), nil
}

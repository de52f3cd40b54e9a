package processor

// retained is how many checkpoints are kept. Without transactions a late copy of an offset commit may set the group back by
// one, and that one must be there.
func (c Config) retained() int {
	if c.loose() {
		return max(c.RetainedCheckpoints, 2)
	}
	return c.RetainedCheckpoints
}

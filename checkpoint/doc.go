// Package checkpoint coordinates the checkpoints of one instance: when one is taken, who has to answer, when it may be
// committed and when it has failed.
package checkpoint

// Package verify is the independent check of exactly-once: it reads a topic of inputs and the topic of running totals
// that some job made of it, and says whether every input had its effect exactly once.
//
// The job is one that gives, for each input, the running count and sum of the input's key. So the outputs of a key
// with n inputs must be the counts 1…n, each once and in this order, each with the sum of as many first inputs. A
// repeated count is a duplicate, a gap is a loss, a count that starts again is lost state, a wrong sum is torn state.
//
// It shares no code with the engine, the stores, the transactions or the sinks, and reads as any read_committed
// consumer does: a fault there cannot hide itself here.
//
// Invariants:
//
//	I1  Only committed records below the last stable offsets of the start count. The output's ends are taken before
//	    the input's, so the inputs of all outputs are in range although the job still runs.
//	I2  A partition is read to its end when the next offset to read has reached it, never when a record with a certain
//	    offset was seen: the last offsets may be markers, aborted records or gaps of compaction.
//	I3  Memory is bounded by Config.KeyBudget and Config.DetailRecords, whatever the number of records and keys. A key
//	    takes one slot of 64 bytes without pointers; more keys than the budget are checked in several passes, each
//	    over a range of the key hash.
//	I4  A key passes only if the digest over (k, sum of the first k inputs) equals the digest over the (count, sum) of
//	    its outputs, both in order, and the number of both is equal. Keys that do not pass are read again, exactly.
//	    A sum is exact as long as all amounts are written as whole numbers, and the float64 that comes of adding them in
//	    their order from the first one on that is not. What differs from that by no more than rounding can, since a job
//	    may add decimals, is neither right nor wrong: without a violation there is no verdict.
//	I5  The verdict is `verified` only if no key failed and every output could be decoded.
//	I6  From an input on whose sum leaves int64 or float64 its key has no right output. A sum that wrapped around is wrong, of
//	    others nothing is said: such a key is never verified, and without a violation there is no verdict.
//	I7  Where no output has a fraction, amounts with one are left out, as the job may have done, and without a violation
//	    there is no verdict.
//
// A key is known by 128 bits of two independently seeded hashes, drawn anew for each run.
//
// Goroutines: Verify starts up to four readers per topic and waits for them; Config.Progress is called from the
// goroutine of Verify.
//
// Files: verify.go (configuration, the passes), scan.go (reading a topic between offsets), decode.go (formats),
// number.go (amounts and sums), table.go (the hash table), detail.go (the exact second look at keys that failed), report.go (result and its text).
package verify

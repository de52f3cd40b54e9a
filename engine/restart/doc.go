// Package restart decides what follows a failed attempt: how long to wait before the next one, or to give up.
//
// The strategies and their options are Flink's: none, fixed-delay, failure-rate and exponential-delay. Beside them stands
// a guard that Flink does not have: a record at which attempt after attempt fails is a poison record, and no strategy,
// however patient, gets past it. The verdict names the record and keeps the first cause, which later ones tend to hide.
//
// Invariants:
//
//	I1  A delay lies between the least and the greatest one of the strategy, jitter included.
//	I2  A strategy that gave up stays so: each further failure gives up, too.
//	I3  Attempts are forgotten only by the strategies that Flink lets forget, and only after an attempt that has run for
//	    long enough. The time counts from when it was running: waits and restores are no sign of health. Attempts that
//	    left, with partitions that went, count together with the one behind them.
//	I4  Memory is bounded: the history keeps HistorySize attempts, the guard the newest guardRecords records.
//
// The package is pure: no clock (times are durations since any fixed start, given by the caller), no goroutine, no I/O.
// A Policy is used by one goroutine.
//
// Files: config.go (options, defaults, checks), strategy.go (the four strategies), guard.go (records that fail again and
// again), policy.go (what the engine uses: strategy, guard and history together), verdict.go (the error of giving up).
package restart

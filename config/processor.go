package config

import "github.com/millweir/millweir/processor"

// Processor gives the settings in the form in which package processor takes them. Logger, listener and client options
// are the caller's to add.
func (s *Service) Processor() processor.Config {
	c, st := s.Checkpointing, s.State
	p := processor.Config{
		Brokers:             s.Kafka.Brokers,
		DataDir:             s.DataDir,
		CheckpointsDir:      st.Checkpoints.Dir,
		RetainedCheckpoints: st.Checkpoints.NumRetained,
		Backend:             st.Backend,
		NoLocalRecovery:     !st.LocalRecovery,
		LocalDirs:           st.LocalRootDirs,
		SyncSnapshots:       !st.Async,
		FullSnapshots:       !st.Incremental,
		MemoryThreshold:     st.MemoryThreshold,
		WriteBufferSize:     st.WriteBufferSize,
		MemoryLimit:         st.MemoryLimit,
		SavepointsDir:       st.SavepointsDir,

		DisabledCheckpoints:         c.Disabled,
		Interval:                    c.Interval,
		Mode:                        c.Mode,
		CheckpointTimeout:           c.Timeout,
		MinPause:                    c.MinPause,
		MaxConcurrent:               c.MaxConcurrent,
		TolerableFailures:           c.TolerableFailures,
		Unaligned:                   c.Unaligned,
		AlignedTimeout:              c.AlignedTimeout,
		Retention:                   c.Retention,
		PreferCheckpointForRecovery: c.PreferCheckpoint,
		ForceIterations:             c.Force,
		Restart:                     s.Restart,
		TransactionTimeout:          s.Transaction.Timeout,

		InstanceID:       s.Instance.ID,
		SessionTimeout:   s.Group.SessionTimeout,
		HoldBackLimit:    s.Sink.HoldBackLimit,
		UncommittedLimit: st.UncommittedLimit,
		ShutdownTimeout:  s.Shutdown.Timeout,
		AdminListen:      s.Admin.Listen,
		AdminToken:       s.Admin.Token,
	}
	// Zero means the default there, and nothing is a value here.
	if p.MemoryThreshold == 0 {
		p.MemoryThreshold = -1
	}
	return p
}

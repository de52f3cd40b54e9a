package config

import "github.com/millweir/millweir/processor"

// Processor gives the settings in the form in which package processor takes them. Logger, listener and client options
// are the caller's to add.
func (s *Service) Processor() processor.Config {
	return processor.Config{
		Brokers:             s.Kafka.Brokers,
		DataDir:             s.DataDir,
		CheckpointsDir:      s.State.Checkpoints.Dir,
		RetainedCheckpoints: s.State.Checkpoints.NumRetained,
		Backend:             processor.Backend(s.State.Backend),
		NoLocalRecovery:     !s.State.LocalRecovery,
		LocalDirs:           s.State.LocalRootDirs,
		Interval:            s.Checkpointing.Interval,
		CheckpointTimeout:   s.Checkpointing.Timeout,
		MinPause:            s.Checkpointing.MinPause,
		TransactionTimeout:  s.Transaction.Timeout,
		InstanceID:          s.Instance.ID,
		SessionTimeout:      s.Group.SessionTimeout,
		HoldBackLimit:       s.Sink.HoldBackLimit,
		UncommittedLimit:    s.State.UncommittedLimit,
		ShutdownTimeout:     s.Shutdown.Timeout,
	}
}

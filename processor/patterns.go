package processor

import (
	"context"

	"github.com/millweir/millweir/internal/kafka"
)

// resolvePatterns replaces sources with a pattern by one per topic that is there now. The application's own topics, for
// checkpoints and control, match no pattern.
func (s *service) resolvePatterns(ctx context.Context) error {
	if !s.plan.HasPattern() {
		return nil
	}
	cl, err := kafka.NewClient(s.kafka())
	if err != nil {
		return err
	}
	defer cl.Close()
	names, err := kafka.TopicNames(ctx, cl)
	if err != nil {
		return err
	}
	app := s.plan.Application
	matched := s.plan.Match(names, app+"-checkpoints", app+"-control")
	plan, err := s.plan.Resolve(matched)
	if err != nil {
		return err
	}
	for source, topics := range matched {
		s.log.Info("topics matched, those that come later are taken in at the next start", "source", source, "topics", topics)
	}
	s.plan = plan
	return s.probe(ctx)
}

package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
)

// RefuseOtherCluster ends the process (class Stop, code HandleMismatch) when the brokers are not those of the cluster with this
// id any more: it has lost its data, or its addresses lead to another one now. Without an id, or where the brokers tell none,
// nothing is refused.
func RefuseOtherCluster(ctx context.Context, cl *kgo.Client, id string) error {
	if id == "" {
		return nil
	}
	var meta *kmsg.MetadataResponse
	err := Again(ctx, cl, func(ctx context.Context) (err error) {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{} // none, nil would be all
		meta, err = req.RequestWith(ctx, cl)
		return err
	})
	if err != nil {
		return Classify(err, "ask the brokers for the id of their cluster")
	}
	if now := clusterID(meta); now != "" && now != id {
		return fault.Stopf(fault.HandleMismatch, "the brokers are of another cluster than at the start: its cluster id is %q, it was %q: the cluster has lost its data, or its addresses lead elsewhere; "+
			"make them lead back, or, where that cluster is gone, begin anew with another application name or another state.checkpoints.dir", now, id)
	}
	return nil
}

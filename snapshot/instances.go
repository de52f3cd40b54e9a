package snapshot

import "context"

// Instances names the instances of the application that have left files in the directory, sorted.
func (r *Repository) Instances(ctx context.Context) ([]string, error) {
	inv, err := r.inventory(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(inv.instances))
	for _, in := range inv.instances {
		names = append(names, r.instanceOf(in.dir))
	}
	return names, nil
}

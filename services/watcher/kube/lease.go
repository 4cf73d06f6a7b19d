package kube

import (
	"context"

	"lockstep.internal/libs/leader"
)

// LeaseOptions select the Lease of an election.
type LeaseOptions struct {
	// Namespace and Name of the Lease.
	Namespace, Name string
	// Installation that the Lease belongs to.
	Installation string
	// Identity of this process, unique, stored in the Lease.
	Identity string
	// VersionDecreased is called when the version of the Lease decreased, or another Lease has its name:
	// the cluster was restored from a backup or recreated. A watch does not report that: the API server
	// accepts a future version and sends nothing until it is reached. The callback must not block.
	VersionDecreased func()
}

// NewElector returns an elector that also watches the version of the Lease.
func (c *Client) NewElector(cfg leader.Config, options LeaseOptions) *leader.Elector {
	return leader.New(leader.Options{
		Config:    cfg,
		Leases:    &versionedLeases{LeasesGetter: c.typed.CoordinationV1(), versionDecreased: options.VersionDecreased},
		Namespace: options.Namespace, Name: options.Name, Installation: options.Installation,
		Identity: options.Identity, Logger: c.logger,
		EnsureNamespace: func(ctx context.Context) error {
			return c.EnsureNamespace(ctx, options.Namespace)
		},
	})
}

package kube

import (
	"context"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// versionedLeases compares the versions of one Lease. The API server reads a Lease from etcd, not from
// a cache, so its versions increase.
type versionedLeases struct {
	coordinationclient.LeasesGetter

	versionDecreased func()

	mu      sync.Mutex
	uid     types.UID
	version string
}

// Leases implements [coordinationclient.LeasesGetter].
func (v *versionedLeases) Leases(namespace string) coordinationclient.LeaseInterface {
	return versionedLease{LeaseInterface: v.LeasesGetter.Leases(namespace), of: v}
}

// checkVersion reports a version below the last one, or another Lease.
func (v *versionedLeases) checkVersion(lease *coordinationv1.Lease, err error) {
	if err != nil {
		return
	}
	v.mu.Lock()
	order, incomparable := resourceversion.CompareResourceVersion(lease.ResourceVersion, v.version)
	decreased := v.version != "" && (lease.UID != v.uid || incomparable == nil && order < 0)
	v.uid, v.version = lease.UID, lease.ResourceVersion
	v.mu.Unlock()
	if decreased {
		v.versionDecreased()
	}
}

type versionedLease struct {
	coordinationclient.LeaseInterface

	of *versionedLeases
}

func (l versionedLease) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, opts)
	l.of.checkVersion(lease, err)
	return lease, err //nolint:wrapcheck // a pass-through
}

func (l versionedLease) Create(
	ctx context.Context,
	lease *coordinationv1.Lease,
	opts metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Create(ctx, lease, opts)
	l.of.checkVersion(lease, err)
	return lease, err //nolint:wrapcheck // a pass-through
}

func (l versionedLease) Update(
	ctx context.Context,
	lease *coordinationv1.Lease,
	opts metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Update(ctx, lease, opts)
	l.of.checkVersion(lease, err)
	return lease, err //nolint:wrapcheck // a pass-through
}

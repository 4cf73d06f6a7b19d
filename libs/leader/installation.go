package leader

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// LabelInstallation of a Lease names the installation whose replicas elect a leader with it.
const LabelInstallation = "lockstep.dev/installation"

// errOtherInstallation is returned instead of a Lease of another installation.
var errOtherInstallation = errors.New("the Lease belongs to another installation")

// ownLeases hides the Leases of other installations. A Lease without the label belongs to nobody.
type ownLeases struct {
	coordinationclient.LeasesGetter

	installation string
}

// Leases implements [coordinationclient.LeasesGetter].
func (o ownLeases) Leases(namespace string) coordinationclient.LeaseInterface {
	return ownLease{LeaseInterface: o.LeasesGetter.Leases(namespace), namespace: namespace, installation: o.installation}
}

type ownLease struct {
	coordinationclient.LeaseInterface

	namespace, installation string
}

func (l ownLease) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, opts)
	if err != nil {
		return nil, err //nolint:wrapcheck // a pass-through
	}
	if other := lease.Labels[LabelInstallation]; other != "" && other != l.installation {
		return nil, fmt.Errorf("%w: %s/%s has the label %s=%s. Two installations need different cell.number, so that their "+
			"agents have different ids. If the other one is gone, delete the Lease",
			errOtherInstallation, l.namespace, name, LabelInstallation, other)
	}
	return lease, nil
}

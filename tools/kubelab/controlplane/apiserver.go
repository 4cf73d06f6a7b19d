package controlplane

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"lockstep.internal/tools/kubelab/pki"
)

// The cluster's service network and the API server's address in it.
const (
	serviceCIDR = "10.96.0.0/16"
	serviceIP   = "10.96.0.1"
)

// ServiceIP returns the API server's address in the service network.
func ServiceIP() net.IP { return net.ParseIP(serviceIP) }

// APIServer configures kube-apiserver.
type APIServer struct {
	Bundle pki.Bundle
	// KubeletCerts has the mutual TLS certificates of API server and kubelets.
	KubeletCerts pki.KubeletCerts
	// EtcdURL is the URL of etcd.
	EtcdURL string
	// Listener accepts connections; the API server closes it.
	Listener net.Listener
}

// StartAPIServer launches kube-apiserver.
func StartAPIServer(ctx context.Context, a APIServer) (*Part, error) {
	tcp, ok := a.Listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("the API server needs a TCP listener, not %s", a.Listener.Addr())
	}
	cert, key := a.Bundle.ServerCert()
	private, public := a.Bundle.ServiceAccountKey()
	kubeletCert, kubeletKey := a.KubeletCerts.ClientCert()
	opts := options.NewServerRunOptions()
	fs := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range opts.Flags().FlagSets {
		fs.AddFlagSet(set)
	}
	err := fs.Parse([]string{
		"--etcd-servers=" + a.EtcdURL,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		// An endpoint of the API server may not be a loopback address, and no pod dials it.
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + cert,
		"--tls-private-key-file=" + key,
		"--client-ca-file=" + a.Bundle.CA(),
		"--anonymous-auth=false",
		"--kubelet-certificate-authority=" + a.KubeletCerts.CA(),
		"--kubelet-client-certificate=" + kubeletCert,
		"--kubelet-client-key=" + kubeletKey,
		// The internal IPs of nodes are not reachable.
		"--kubelet-preferred-address-types=ExternalIP",
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + public,
		"--service-account-signing-key-file=" + private,
		"--service-cluster-ip-range=" + serviceCIDR,
		"--allow-privileged=true",
		"--profiling=false",
		// Lets the server end within two seconds of a stop although watches are open.
		"--shutdown-send-retry-after=true",
	})
	if err != nil {
		return nil, fmt.Errorf("parse the API server's flags: %w", err)
	}
	opts.SecureServing.Listener = a.Listener
	opts.SecureServing.BindPort = tcp.Port
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("set the API server's feature gates: %w", err)
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return nil, fmt.Errorf("complete the API server's options: %w", err)
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return nil, fmt.Errorf("the API server's options: %w", utilerrors.NewAggregate(errs))
	}
	return Go(ctx, "kube-apiserver", func(ctx context.Context) error {
		return app.Run(ctx, completed)
	}), nil
}

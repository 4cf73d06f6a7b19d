package cli

import (
	"context"
	"fmt"
	"path"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/kubeclient"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/stack"
)

func (a *app) kubernetesCommands() *cobra.Command {
	return group("kubernetes", "Create the keys of a control plane in Kubernetes", a.kubernetesInit())
}

func (a *app) kubernetesInit() *cobra.Command {
	options := stack.SecretsOptions{NATS: natsauth.Options{
		ListenHost: "0.0.0.0", MonitorPort: 8222, StoreDir: "/data/jetstream",
	}}
	var kubeconfig, namespace, tlsDir string
	var natsServers int
	var mapCells []string
	var postgreSQL bool
	c := &cobra.Command{
		Use:   "init --namespace NAMESPACE",
		Short: "Create the keys of a control plane as Secrets, one for each principal",
		Args:  exactly(),
		Long: `Create the missing Secrets of a control plane, and write the configuration of NATS. The Helm chart runs this
before each install and upgrade. No key is ever replaced: Secrets that exist, such as restored ones, are used. Back
them up with the database: without the key seal.seed of NAME-state all secret values are lost.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if namespace == "" {
				return fault.New(errcode.InvalidArgument, "--namespace is missing")
			}
			options.NATS.Cell = topology.Cell(a.client.Cell)
			for _, cell := range mapCells {
				options.NATS.MapCells = append(options.NATS.MapCells, topology.Cell(cell))
			}
			if tlsDir != "" {
				options.NATS.TLS = &natsauth.TLS{CertFile: path.Join(tlsDir, "tls.crt"), KeyFile: path.Join(tlsDir, "tls.key")}
			}
			if natsServers > 1 {
				options.NATS.Cluster = podCluster(options.Name+"-nats", namespace, natsServers, tlsDir)
			}
			relay := options.Name + "-relay"
			for _, service := range []string{relay, relay + "-agents", "*." + relay + "-internal"} {
				options.RelayHosts = append(options.RelayHosts, service+"."+namespace+".svc")
			}
			if postgreSQL {
				options.PostgreSQLHost = options.Name + "-postgresql." + namespace + ".svc:5432"
			}
			changes, err := initSecrets(c.Context(), kubeconfig, namespace, options)
			if err != nil {
				return err
			}
			t := table{header: []string{"SECRET", "CHANGE"}}
			for _, change := range changes {
				t.rows = append(t.rows, []string{change.Name, string(change.Change)})
			}
			return a.printTable(t)
		},
	}
	f := c.Flags()
	f.StringVar(&options.Name, "name", "lockstep", "prefix of the names of Secrets and Services")
	f.StringVar(&namespace, "namespace", "", "namespace of the control plane (required)")
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; default: the cluster that this runs in")
	f.IntVar(&natsServers, "nats-servers", 1, "number of NATS servers of the chart")
	f.IntVar(&options.NATS.WebSocketPort, "nats-websocket-port", 0,
		"port of the NATS servers for agents behind HTTP proxies; 0 for none")
	f.StringSliceVar(&mapCells, "map-cells", nil,
		"other cells that write their entry into the cell map of these servers; each gets a Secret NAME-cell-CELL with "+
			"its key")
	f.StringVar(&tlsDir, "nats-tls-dir", "",
		"folder of tls.crt, tls.key and ca.crt on the NATS servers; default: no TLS")
	f.BoolVar(&options.RelayCertificate, "relay-certificate", true, "create a self-signed certificate of relays")
	f.StringSliceVar(&options.RelayHosts, "relay-host", nil,
		"further names of relays in that certificate; can be repeated")
	f.BoolVar(&postgreSQL, "postgresql", true, "create a password for the PostgreSQL of the chart")
	return c
}

// podCluster are the routes between the pods of a StatefulSet. All servers have the same configuration.
func podCluster(name, namespace string, servers int, tlsDir string) *natsauth.Cluster {
	const port = 6222
	cluster := &natsauth.Cluster{Name: "lockstep", ListenHost: "0.0.0.0", ListenPort: port}
	for i := range servers {
		cluster.Routes = append(cluster.Routes,
			fmt.Sprintf("nats://%s-%d.%s-internal.%s.svc:%d", name, i, name, namespace, port))
	}
	if tlsDir != "" {
		cluster.TLS = &natsauth.TLS{
			CertFile: path.Join(tlsDir, "tls.crt"), KeyFile: path.Join(tlsDir, "tls.key"),
			CAFile: path.Join(tlsDir, "ca.crt"), VerifyClients: true,
		}
	}
	return cluster
}

func initSecrets(
	ctx context.Context, kubeconfig, namespace string, options stack.SecretsOptions,
) ([]stack.SecretChange, error) {
	cfg, err := kubeclient.Load(kubeconfig, "")
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "%v", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	return stack.InitSecrets(ctx, client.CoreV1().Secrets(namespace), options)
}

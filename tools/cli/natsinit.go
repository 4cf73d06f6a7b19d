package cli

import (
	"time"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

func (a *app) natsCommands() *cobra.Command {
	return group("nats", "The NATS server's configuration", a.natsInit())
}

func (a *app) natsInit() *cobra.Command {
	var dir string
	opts := natsauth.Options{TLS: &natsauth.TLS{}}
	c := &cobra.Command{
		Use: "init --dir DIR", Short: "Write the server's configuration, accounts and keys", Args: exactly(),
		Long: `Write nats-server.conf and the keys of the control plane into a folder. Running it again keeps every key and renders the
configuration anew, so it can be part of every start. The configuration holds public keys only; the keys files are for their services alone.`,
		RunE: func(*cobra.Command, []string) error {
			opts.Cell = topology.Cell(a.client.Cell)
			if opts.TLS.CertFile == "" && opts.TLS.KeyFile == "" {
				opts.TLS = nil
			}
			report, err := natsauth.Init(dir, opts)
			if err != nil {
				return err
			}
			t := table{header: []string{"FILE", "CHANGE"}}
			for _, f := range report.Files {
				t.rows = append(t.rows, []string{f.Path, string(f.Change)})
			}
			return a.printTable(t)
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "dir", "nats", "folder to write to")
	f.StringVar(&opts.ListenHost, "listen-host", "127.0.0.1", "address the server listens on")
	f.IntVar(&opts.ListenPort, "listen-port", 4222, "port for clients")
	f.IntVar(&opts.MonitorPort, "monitor-port", 0, "port for the server's own health and metrics; 0 for none")
	f.StringVar(&opts.StoreDir, "store-dir", "jetstream", "where the server keeps streams; a relative one is relative to its working directory")
	f.DurationVar(&opts.SyncInterval, "sync-interval", 10*time.Second, "how much acknowledged writing a power failure may lose on a single server")
	f.StringVar(&opts.TLS.CertFile, "tls-cert-file", "", "PEM certificate, as the server sees it")
	f.StringVar(&opts.TLS.KeyFile, "tls-key-file", "", "PEM key, as the server sees it")
	return c
}

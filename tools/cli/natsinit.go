package cli

import (
	"time"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

func (a *app) natsCommands() *cobra.Command {
	return group("nats", "Configure the NATS server", a.natsInit())
}

func (a *app) natsInit() *cobra.Command {
	var dir string
	opts := natsauth.Options{TLS: &natsauth.TLS{}}
	c := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Write the configuration, accounts and keys of the NATS server",
		Args:  exactly(),
		Long: `Write nats-server.conf and the keys of the control plane to a folder. A second run keeps every key and
writes the configuration again, so it can be part of every start. The configuration has public keys only. Give each
key file to its service only.`,
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
	f.StringVar(&dir, "dir", "nats", "folder to write")
	f.StringVar(&opts.ListenHost, "listen-host", "127.0.0.1", "address on which the server listens")
	f.IntVar(&opts.ListenPort, "listen-port", 4222, "port for clients")
	f.IntVar(&opts.MonitorPort, "monitor-port", 0, "port for health and metrics of the server; 0 for none")
	f.StringVar(&opts.StoreDir, "store-dir", "jetstream",
		"folder of the streams; a relative path is relative to the working directory of the server")
	f.DurationVar(&opts.SyncInterval, "sync-interval", 10*time.Second,
		"time of acknowledged writes that a power failure of a single server may lose")
	f.StringVar(&opts.TLS.CertFile, "tls-cert-file", "", "PEM file with the certificate, as a path of the server")
	f.StringVar(&opts.TLS.KeyFile, "tls-key-file", "", "PEM file with the key, as a path of the server")
	return c
}

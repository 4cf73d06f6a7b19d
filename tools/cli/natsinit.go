package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

func (a *app) natsCommands() *cobra.Command {
	return group("nats", "Configure the NATS server", a.natsInit())
}

func (a *app) natsInit() *cobra.Command {
	var dir string
	opts := natsauth.Options{TLS: &natsauth.TLS{}}
	cluster := natsCluster{tls: natsauth.TLS{VerifyClients: true}}
	var mapCells string
	c := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Write the configuration, accounts and keys of the NATS server",
		Args:  exactly(),
		Long: `Write nats-server.conf and the keys of the control plane to a folder. A second run keeps every key and
writes the configuration again, so it can be part of every start. It uses the flags of the run before, which are in
init.json, unless it has its own. Restart a running server if the configuration changed: it cannot reload all of it. The
configuration has public keys only. The folder keys has the keys of the state service. The folder of each other
service, and of the operator, who uses the command line, has its key: give each only its own folder.

With --cluster it writes one configuration per server, NAME.conf, with the same keys. Give each server its own. The
nats-server.conf of an earlier run without --cluster stays as it was: remove it.`,
		RunE: func(c *cobra.Command, _ []string) error {
			before, err := readNATSSettings(dir)
			if err != nil {
				return err
			}
			if err := before.apply(c.LocalNonPersistentFlags(), a.client.Cell); err != nil {
				return fmt.Errorf("%s: %w", natsSettingsFile(dir), err)
			}
			opts.Cell = topology.Cell(a.client.Cell)
			for cell := range strings.SplitSeq(mapCells, ",") {
				if cell = strings.TrimSpace(cell); cell != "" {
					opts.MapCells = append(opts.MapCells, topology.Cell(cell))
				}
			}
			if opts.TLS.CertFile == "" && opts.TLS.KeyFile == "" {
				opts.TLS = nil
			}
			if opts.Cluster, err = cluster.options(opts); err != nil {
				return err
			}
			report, err := natsauth.Init(dir, opts)
			if err != nil {
				return err
			}
			settings, err := writeNATSSettings(dir, before, natsSettingsOf(c.LocalNonPersistentFlags(), a.client.Cell))
			if err != nil {
				return err
			}
			t := table{header: []string{"FILE", "CHANGE"}}
			for _, f := range append(report.Files, settings) {
				t.rows = append(t.rows, []string{f.Path, string(f.Change)})
			}
			if report.RestartNeeded() {
				err = a.note("restart the NATS server: it cannot reload all of the new configuration")
			}
			return errors.Join(err, a.printTable(t))
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "dir", "nats", "folder to write")
	f.StringVar(&opts.ListenHost, "listen-host", "127.0.0.1", "address on which the server listens")
	f.IntVar(&opts.ListenPort, "listen-port", 4222, "port for clients")
	f.IntVar(&opts.WebSocketPort, "websocket-port", 0,
		"port for clients behind HTTP proxies, which use wss:// addresses; with the certificate of the port for clients; "+
			"0 for none")
	f.IntVar(&opts.MonitorPort, "monitor-port", 0, "port for health and metrics of the server; 0 for none")
	f.StringVar(&opts.MonitorHost, "monitor-host", "",
		"address of that port, which asks for no key; default: that of --listen-host")
	f.StringVar(&opts.StoreDir, "store-dir", "jetstream",
		"folder of the streams; a relative path is relative to the working directory of the server")
	opts.SyncInterval = 10 * time.Second
	f.Var((*syncInterval)(&opts.SyncInterval), "sync-interval",
		"time of acknowledged writes that a power failure of a single server may lose; always: none, at a tenth of the "+
			"speed or less")
	f.StringVar(&opts.TLS.CertFile, "tls-cert-file", "", "PEM file with the certificate, as a path of the server")
	f.StringVar(&opts.TLS.KeyFile, "tls-key-file", "", "PEM file with the key, as a path of the server")
	f.StringVar(&mapCells, "map-cells", "",
		"other cells that write their entry into the cell map of this server, comma-separated; each gets a key")
	f.StringVar(&cluster.servers, "cluster", "",
		"servers of a cluster, comma-separated: NAME=HOST or NAME=HOST:PORT, where the others reach it; "+
			"the default port is 6222")
	f.StringVar(&cluster.tls.CertFile, "cluster-tls-cert-file", "", "PEM file with the certificate for other servers")
	f.StringVar(&cluster.tls.KeyFile, "cluster-tls-key-file", "", "PEM file with the key for other servers")
	f.StringVar(&cluster.tls.CAFile, "cluster-tls-ca-file", "", "PEM file that verifies the certificates of other servers")
	return c
}

// syncInterval is the value of a flag: a positive duration, or always.
type syncInterval time.Duration

const syncAlways = "always"

func (s *syncInterval) Set(value string) error {
	if value == syncAlways {
		*s = syncInterval(natsauth.SyncAlways)
		return nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return fmt.Errorf("must be %s, or a duration above 0 such as 10s", syncAlways)
	}
	*s = syncInterval(d)
	return nil
}

func (s *syncInterval) String() string {
	if time.Duration(*s) == natsauth.SyncAlways {
		return syncAlways
	}
	return time.Duration(*s).String()
}

func (*syncInterval) Type() string { return "always|duration" }

// natsCluster are the flags of a cluster.
type natsCluster struct {
	servers string
	tls     natsauth.TLS
}

// routePort is the default port of a server for the others.
const routePort = 6222

// options returns nil for a single server.
func (c natsCluster) options(common natsauth.Options) (*natsauth.Cluster, error) {
	if c.servers == "" {
		return nil, nil //nolint:nilnil // it is optional
	}
	cluster := &natsauth.Cluster{Name: string(common.Cell), ListenHost: common.ListenHost}
	if c.tls.CertFile != "" || c.tls.KeyFile != "" || c.tls.CAFile != "" {
		cluster.TLS = &c.tls
	}
	for each := range strings.SplitSeq(c.servers, ",") {
		name, host, _ := strings.Cut(strings.TrimSpace(each), "=")
		server := natsauth.ClusterServer{Name: name, Host: host, Port: routePort}
		if before, after, err := net.SplitHostPort(host); err == nil {
			port, err := strconv.Atoi(after)
			if err != nil {
				return nil, fault.New(errcode.InvalidArgument, "--cluster: %q is not NAME=HOST:PORT", each)
			}
			server.Host, server.Port = before, port
		}
		cluster.Servers = append(cluster.Servers, server)
	}
	return cluster, nil
}

// natsSettings are the cell and the flags of a run of nats init, without its folder.
type natsSettings struct {
	Cell  string            `json:"cell"`
	Flags map[string]string `json:"flags"`
}

func natsSettingsFile(dir string) string { return filepath.Join(dir, "init.json") }

func natsSettingsOf(flags *pflag.FlagSet, cell string) natsSettings {
	settings := natsSettings{Cell: cell, Flags: map[string]string{}}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "dir" && f.Name != "help" {
			settings.Flags[f.Name] = f.Value.String()
		}
	})
	return settings
}

// readNATSSettings returns the settings of the last run in a folder. They are empty before the first run.
func readNATSSettings(dir string) (natsSettings, error) {
	var settings natsSettings
	content, err := os.ReadFile(natsSettingsFile(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return natsSettings{}, nil
	case err != nil:
		return natsSettings{}, fmt.Errorf("read the settings of the last run: %w", err)
	}
	if err := json.Unmarshal(content, &settings); err != nil {
		return natsSettings{}, fault.New(errcode.InvalidArgument,
			"%s: not written by nats init: %v; remove it and repeat all flags", natsSettingsFile(dir), err)
	}
	return settings, nil
}

// apply sets the flags that this run does not have. The cell of a folder never changes: its keys belong to one cell.
func (s natsSettings) apply(flags *pflag.FlagSet, cell string) error {
	if s.Cell != "" && s.Cell != cell {
		return fault.New(errcode.InvalidArgument,
			"the folder belongs to cell %s: repeat with --cell %s, or choose another --dir", s.Cell, s.Cell)
	}
	for name, value := range s.Flags {
		if f := flags.Lookup(name); f == nil || f.Changed {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return fault.New(errcode.InvalidArgument, "%s: %v; give the flag --%s", name, err, name)
		}
	}
	return nil
}

func writeNATSSettings(dir string, before, now natsSettings) (natsauth.File, error) {
	file := natsauth.File{Path: natsSettingsFile(dir), Change: natsauth.Updated}
	content, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return natsauth.File{}, fmt.Errorf("encode the settings: %w", err)
	}
	last, err := json.MarshalIndent(before, "", "  ")
	if err != nil {
		return natsauth.File{}, fmt.Errorf("encode the settings: %w", err)
	}
	switch {
	case bytes.Equal(content, last):
		file.Change = natsauth.Kept
		return file, nil
	case before.Flags == nil:
		file.Change = natsauth.Created
	}
	temporary, err := os.CreateTemp(dir, ".init-*.json")
	if err != nil {
		return natsauth.File{}, fmt.Errorf("write the settings: %w", err)
	}
	_, err = temporary.Write(append(content, '\n'))
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), file.Path)
	}
	if err != nil {
		return natsauth.File{}, errors.Join(fmt.Errorf("write the settings: %w", err), os.Remove(temporary.Name()))
	}
	return file, nil
}

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// maxSocketPath is the longest unix socket path that Linux and macOS both take.
const maxSocketPath = 103

// Etcd configures etcd.
type Etcd struct {
	// DataDir is the folder of the database.
	DataDir string
	// SocketDir is the folder of the socket. It must be short: socket paths are limited to 103 bytes.
	SocketDir string
	// Durable enables fsync. Temporary labs disable it.
	Durable bool
	// Log receives what etcd logs.
	Log io.Writer
}

// URL returns the address at which the API server reaches etcd.
func (e Etcd) URL() string { return "unix://" + e.socket() }

func (e Etcd) socket() string { return filepath.Join(e.SocketDir, "etcd.sock") }

// StartEtcd starts a single-member etcd and returns once it serves.
func StartEtcd(ctx context.Context, e Etcd) (*Part, error) {
	if len(e.socket()) > maxSocketPath {
		return nil, fmt.Errorf("the socket path %s is longer than %d bytes; set TMPDIR to a shorter folder", e.socket(),
			maxSocketPath)
	}
	cfg := embed.NewConfig()
	cfg.Name = "kubelab"
	cfg.Dir = e.DataDir
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: e.socket()}}
	cfg.ListenPeerUrls = nil
	// A single member has no peers: both addresses are only part of the stored membership, so they are constant,
	// and nothing listens on them.
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2379"}}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2380"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = !e.Durable
	// Alone, it has no election to wait for.
	cfg.TickMs, cfg.ElectionMs = 20, 200
	cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapcore.NewCore(
		zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(e.Log), zapcore.WarnLevel)))

	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd on %s: %w", e.DataDir, err)
	}
	part := Go(ctx, "etcd", func(ctx context.Context) error {
		defer server.Close()
		select {
		case <-ctx.Done():
			return nil
		case err := <-server.Err():
			return err
		case <-server.Server.StopNotify():
			return errors.New("the server stopped")
		}
	})
	select {
	case <-server.Server.ReadyNotify():
		return part, nil
	case <-part.Done():
		return nil, part.Err()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for etcd: %w", ctx.Err())
	}
}

package service

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/logkey"
)

// config reads the files once, to fail early, and then again whenever they change. The logger may be nil when only
// validating.
func (t TLS) config(logger *slog.Logger) (*tls.Config, error) {
	reloader := &certificate{files: t, logger: logger}
	if err := reloader.load(); err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: reloader.get}
	if t.ClientCAFile != "" {
		authorities, err := certpool.Load(t.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("client_ca_file: %w", err)
		}
		cfg.ClientCAs = authorities
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// certificate is a key pair that is read again when a file's modification time changes, so that rotation needs no
// restart. If loading fails, the old pair stays in use.
type certificate struct {
	files  TLS
	logger *slog.Logger

	mu      sync.Mutex
	pair    *tls.Certificate
	changed [2]time.Time
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if changed, err := c.stat(); err == nil && changed != c.changed {
		if err := c.read(); err != nil {
			c.logger.Error("certificate not reloaded, the old one stays in use", logkey.Error(err))
		}
	}
	return c.pair, nil
}

func (c *certificate) load() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

func (c *certificate) read() error {
	changed, err := c.stat()
	if err != nil {
		return err
	}
	c.changed = changed
	pair, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return fmt.Errorf("cannot load the certificate: %w", err)
	}
	c.pair = &pair
	return nil
}

func (c *certificate) stat() ([2]time.Time, error) {
	var changed [2]time.Time
	for i, name := range []string{c.files.CertFile, c.files.KeyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return changed, fmt.Errorf("cannot load the certificate: %w", err)
		}
		changed[i] = info.ModTime()
	}
	return changed, nil
}

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// KubeletCerts is a folder with the mutual TLS certificates between the API server and the kubelet endpoint. The CA key
// is not stored, so no other client can connect to the endpoint.
type KubeletCerts struct{ dir string }

// NewKubeletCerts creates the certificates in dir, which must not exist.
func NewKubeletCerts(dir string, now time.Time) (KubeletCerts, error) {
	ca, caPair, err := newAuthority("kubelab-kubelets-ca", now)
	if err != nil {
		return KubeletCerts{}, err
	}
	server, err := ca.server("kubelab-kubelets", nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return KubeletCerts{}, err
	}
	client, err := ca.client("kube-apiserver-kubelet-client")
	if err != nil {
		return KubeletCerts{}, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return KubeletCerts{}, fmt.Errorf("create the folder of the kubelets' certificates: %w", err)
	}
	c := KubeletCerts{dir: dir}
	clientCert, clientKey := c.ClientCert()
	for path, content := range map[string][]byte{
		c.CA(): caPair.cert, clientCert: client.cert, clientKey: client.key,
		c.serverCert(): server.cert, c.serverKey(): server.key,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return KubeletCerts{}, fmt.Errorf("write a certificate of the kubelets: %w", err)
		}
	}
	return c, nil
}

// CA returns the path of the CA certificate.
func (c KubeletCerts) CA() string { return filepath.Join(c.dir, "ca.crt") }

// ClientCert returns the paths of the certificate and key of the API server.
func (c KubeletCerts) ClientCert() (cert, key string) {
	return filepath.Join(c.dir, "apiserver.crt"), filepath.Join(c.dir, "apiserver.key")
}

// ServerTLS returns the configuration of the endpoint on 127.0.0.1. It accepts only the certificate of ClientCert.
func (c KubeletCerts) ServerTLS() (*tls.Config, error) {
	ca, err := os.ReadFile(c.CA())
	if err != nil {
		return nil, fmt.Errorf("read the kubelet CA certificate: %w", err)
	}
	clientCAs := x509.NewCertPool()
	if !clientCAs.AppendCertsFromPEM(ca) {
		return nil, errNoCertificate
	}
	certificate, err := tls.LoadX509KeyPair(c.serverCert(), c.serverKey())
	if err != nil {
		return nil, fmt.Errorf("read the kubelets' certificate: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{certificate},
		ClientCAs:    clientCAs,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

func (c KubeletCerts) serverCert() string { return filepath.Join(c.dir, "kubelets.crt") }
func (c KubeletCerts) serverKey() string  { return filepath.Join(c.dir, "kubelets.key") }

var errNoCertificate = errors.New("the kubelet CA is not a certificate")

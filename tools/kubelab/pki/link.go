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

// Link is the folder that holds what the API server and the kubelets' endpoint
// prove to each other. Its authority signs one certificate for each side and is
// forgotten, so no identity of the lab, the administrator's included, gets past
// the API server to the endpoint.
type Link struct{ dir string }

// NewLink makes a link in dir, which must not exist.
func NewLink(dir string, now time.Time) (Link, error) {
	ca, caPair, err := newAuthority("kubelab-kubelets-ca", now)
	if err != nil {
		return Link{}, err
	}
	server, err := ca.server("kubelab-kubelets", nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return Link{}, err
	}
	client, err := ca.client("kube-apiserver-kubelet-client")
	if err != nil {
		return Link{}, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return Link{}, fmt.Errorf("make the folder of the kubelets' certificates: %w", err)
	}
	l := Link{dir: dir}
	clientCert, clientKey := l.ClientCert()
	for path, content := range map[string][]byte{
		l.CA(): caPair.cert, clientCert: client.cert, clientKey: client.key,
		l.serverCert(): server.cert, l.serverKey(): server.key,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return Link{}, fmt.Errorf("write a certificate of the kubelets: %w", err)
		}
	}
	return l, nil
}

// CA returns the path of the authority's certificate.
func (l Link) CA() string { return filepath.Join(l.dir, "ca.crt") }

// ClientCert returns the paths of the certificate and key that the API server shows.
func (l Link) ClientCert() (cert, key string) {
	return filepath.Join(l.dir, "apiserver.crt"), filepath.Join(l.dir, "apiserver.key")
}

// ServerTLS returns the endpoint's side: it serves 127.0.0.1 and lets in whoever
// shows the certificate of ClientCert.
func (l Link) ServerTLS() (*tls.Config, error) {
	ca, err := os.ReadFile(l.CA())
	if err != nil {
		return nil, fmt.Errorf("read the kubelets' authority: %w", err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(ca) {
		return nil, errNoCertificate
	}
	own, err := tls.LoadX509KeyPair(l.serverCert(), l.serverKey())
	if err != nil {
		return nil, fmt.Errorf("read the kubelets' certificate: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{own},
		ClientCAs:    clients,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

func (l Link) serverCert() string { return filepath.Join(l.dir, "kubelets.crt") }
func (l Link) serverKey() string  { return filepath.Join(l.dir, "kubelets.key") }

var errNoCertificate = errors.New("the kubelets' authority is no certificate")

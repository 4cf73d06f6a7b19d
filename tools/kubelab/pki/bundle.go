package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Identity names a client certificate of the bundle.
type Identity string

// The identities of a lab.
const (
	Admin             Identity = "admin"
	ControllerManager Identity = "controller-manager"
	Scheduler         Identity = "scheduler"
	Kubelets          Identity = "kubelets"
)

// Bundle is the folder that holds a lab's certificates and keys.
type Bundle struct{ dir string }

// Ensure returns the bundle in dir, making it first when dir does not exist.
// serviceIP is the cluster address of the API server.
func Ensure(dir string, serviceIP net.IP, now time.Time) (Bundle, error) {
	if _, err := os.Stat(dir); err == nil {
		return Bundle{dir: dir}, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Bundle{}, fmt.Errorf("look for certificates: %w", err)
	}
	files, err := generate(serviceIP, now)
	if err != nil {
		return Bundle{}, err
	}
	staging := dir + ".new"
	if err := os.RemoveAll(staging); err != nil {
		return Bundle{}, fmt.Errorf("clear unfinished certificates: %w", err)
	}
	if err := os.MkdirAll(staging, 0o700); err != nil {
		return Bundle{}, fmt.Errorf("make the certificates' folder: %w", err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(staging, name), content, 0o600); err != nil {
			return Bundle{}, fmt.Errorf("write a certificate: %w", err)
		}
	}
	if err := os.Rename(staging, dir); err != nil {
		return Bundle{}, fmt.Errorf("put the certificates in place: %w", err)
	}
	return Bundle{dir: dir}, nil
}

func generate(serviceIP net.IP, now time.Time) (map[string][]byte, error) {
	ca, caPair, err := newAuthority("kubelab-ca", now)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"ca.crt": caPair.cert, "ca.key": caPair.key}
	server, err := ca.server(
		"kube-apiserver",
		[]string{
			"localhost",
			"kubernetes",
			"kubernetes.default",
			"kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		},
		[]net.IP{net.IPv4(127, 0, 0, 1), serviceIP},
	)
	if err != nil {
		return nil, err
	}
	files["apiserver.crt"], files["apiserver.key"] = server.cert, server.key

	// The components share one process with the API server, so nothing is
	// gained by narrowing their rights; the names are the usual ones so that
	// managed fields and audit read as on a real cluster.
	for identity, user := range map[Identity]string{
		Admin:             "kubelab-admin",
		ControllerManager: "system:kube-controller-manager",
		Scheduler:         "system:kube-scheduler",
		Kubelets:          "system:kubelab-kubelets",
	} {
		p, err := ca.client(user, "system:masters")
		if err != nil {
			return nil, err
		}
		files[string(identity)+".crt"], files[string(identity)+".key"] = p.cert, p.key
	}
	if files["service-account.key"], files["service-account.pub"], err = newSigningKey(); err != nil {
		return nil, err
	}
	return files, nil
}

// CA returns the path of the authority's certificate.
func (b Bundle) CA() string { return filepath.Join(b.dir, "ca.crt") }

// ServerCert returns the paths of the API server's certificate and key.
func (b Bundle) ServerCert() (cert, key string) {
	return filepath.Join(b.dir, "apiserver.crt"), filepath.Join(b.dir, "apiserver.key")
}

// ServiceAccountKey returns the paths of the private and the public key of
// service account tokens.
func (b Bundle) ServiceAccountKey() (private, public string) {
	return filepath.Join(b.dir, "service-account.key"), filepath.Join(b.dir, "service-account.pub")
}

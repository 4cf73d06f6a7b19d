package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns the configuration with which identity reaches server
// (a URL), everything embedded. name is the cluster's and the context's name.
func (b Bundle) Kubeconfig(identity Identity, name, server string) (*api.Config, error) {
	ca, err := os.ReadFile(b.CA())
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	cert, err := os.ReadFile(filepath.Join(b.dir, string(identity)+".crt"))
	if err != nil {
		return nil, fmt.Errorf("read the certificate of %s: %w", identity, err)
	}
	key, err := os.ReadFile(filepath.Join(b.dir, string(identity)+".key"))
	if err != nil {
		return nil, fmt.Errorf("read the key of %s: %w", identity, err)
	}
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return config, nil
}

// WriteKubeconfig puts config at path in one rename, readable by its owner only.
func WriteKubeconfig(config *api.Config, path string) error {
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode kubeconfig %s: %w", path, err)
	}
	if err := WriteFile(path, content); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// WriteFile puts content at path in one rename, readable by its owner only.
func WriteFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("make a file beside %s: %w", path, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// CheckKubeconfigPath returns an error if the file is a kubeconfig of something else: the default ones, and any
// file with another content.
func CheckKubeconfigPath(path, name string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("resolve %s: %w", path, err)
	}
	defaults := filepath.SplitList(os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
	defaults = append(defaults, clientcmd.RecommendedHomeFile)
	for _, d := range defaults {
		if d == "" {
			continue
		}
		if other, err := filepath.Abs(d); err == nil && other == abs {
			return fmt.Errorf("%s is the default kubeconfig: set another --kubeconfig", path)
		}
	}
	existing, err := clientcmd.LoadFromFile(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s exists and is not a kubeconfig: %w", path, err)
	}
	if _, ours := existing.Clusters[name]; len(existing.Clusters) > 1 || (len(existing.Clusters) == 1 && !ours) {
		return fmt.Errorf("%s has clusters other than the lab %s: set another --kubeconfig", path, name)
	}
	return nil
}

package clone

import (
	"bufio"
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"lockstep.internal/libs/workspaceagent"
)

// Credentials are what repositories ask for. Each is used for the hosts that it names only, also for submodules and
// after redirections.
type Credentials struct {
	accounts    []*url.URL
	privateKey  ssh.Signer
	hostKeys    ssh.HostKeyCallback
	authorities *x509.CertPool // nil: those of the system
}

// LoadCredentials reads the files of a folder, whose names package workspaceagent has. An empty folder name means none.
func LoadCredentials(folder string) (*Credentials, error) {
	c := &Credentials{}
	if folder == "" {
		return c, nil
	}
	steps := []struct {
		name string
		load func(path string, data []byte) error
	}{
		{workspaceagent.GitCredentials, c.loadAccounts},
		{workspaceagent.SSHKey, c.loadKey},
		{workspaceagent.KnownHosts, c.loadKnownHosts},
		{workspaceagent.Authorities, c.loadAuthorities},
	}
	for _, step := range steps {
		path := filepath.Join(folder, step.name)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = step.load(path, data)
		}
		if err != nil {
			return nil, fmt.Errorf("secret file %s: %w", step.name, err)
		}
	}
	return c, nil
}

// loadAccounts never puts a line into an error, since it has a password.
func (c *Credentials) loadAccounts(_ string, data []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		account, err := url.Parse(line)
		if err != nil || account.Host == "" || account.User == nil ||
			(account.Scheme != "https" && account.Scheme != "http") {
			return fmt.Errorf("line %d is not like https://user:token@host", number)
		}
		c.accounts = append(c.accounts, account)
	}
	return lines.Err() //nolint:wrapcheck // the caller names the file
}

func (c *Credentials) loadKey(_ string, data []byte) error {
	key, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return errors.New("is not a private key without a passphrase in OpenSSH's or PEM format")
	}
	c.privateKey = key
	return nil
}

func (c *Credentials) loadKnownHosts(path string, _ []byte) error {
	callback, err := knownhosts.New(path)
	c.hostKeys = callback
	return err //nolint:wrapcheck // the caller names the file
}

func (c *Credentials) loadAuthorities(_ string, data []byte) error {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // an image without any: fallback roots are part of the program
	}
	if !pool.AppendCertsFromPEM(data) {
		return errors.New("has no certificate in PEM format")
	}
	c.authorities = pool
	return nil
}

// method returns how to authenticate at a repository, or nil for not at all.
func (c *Credentials) method(address string) (transport.AuthMethod, error) {
	endpoint, err := transport.NewEndpoint(address)
	if err != nil {
		return nil, fmt.Errorf("%q is not the URL of a repository: %w", workspaceagent.Redact(address), err)
	}
	if endpoint.Protocol == "ssh" {
		return c.keyMethod(endpoint)
	}
	remote, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%q is not the URL of a repository", workspaceagent.Redact(address))
	}
	for _, account := range c.accounts {
		if account.Scheme != remote.Scheme || account.Host != remote.Host || !below(remote.Path, account.Path) {
			continue
		}
		if name := remote.User.Username(); name != "" && name != account.User.Username() {
			continue
		}
		password, _ := account.User.Password()
		return &githttp.BasicAuth{Username: account.User.Username(), Password: password}, nil
	}
	return nil, nil //nolint:nilnil // go-git's nil method: a public repository
}

// below reports whether a path is that of the account, or in it. An account without a path is for its whole host.
func below(path, account string) bool {
	account = strings.TrimSuffix(account, "/")
	return account == "" || path == account || strings.HasPrefix(path, account+"/")
}

func (c *Credentials) keyMethod(endpoint *transport.Endpoint) (transport.AuthMethod, error) {
	switch {
	case c.privateKey == nil:
		return nil, fmt.Errorf("ssh needs a private key: add the secret file %s, or use the https URL", workspaceagent.SSHKey)
	case c.hostKeys == nil:
		return nil, fmt.Errorf("ssh needs the host key of %s: add the secret file %s (ssh-keyscan prints it)",
			endpoint.Host, workspaceagent.KnownHosts)
	}
	user := endpoint.User
	if user == "" {
		user = gitssh.DefaultUsername
	}
	return &gitssh.PublicKeys{
		User: user, Signer: c.privateKey,
		HostKeyCallbackHelper: gitssh.HostKeyCallbackHelper{HostKeyCallback: c.hostKeys},
	}, nil
}

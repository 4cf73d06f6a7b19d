package workspaceagent

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// Names of the files of credentials. All may be missing.
const (
	// GitCredentials has lines like https://user:token@host, as git's store.
	GitCredentials = "git-credentials"
	// SSHKey is a private key without a passphrase.
	SSHKey = "ssh-key"
	// KnownHosts are the host keys of remote repositories; required for ssh.
	KnownHosts = "known_hosts"
	// Authorities are more certificate authorities for https, in PEM format.
	Authorities = "ca.crt"
)

// maxText is the greatest length of a name, a URL, a revision and a folder.
const maxText = 2000

// Project is a repository to clone.
type Project struct {
	Name string `json:"name"`
	// URL of the repository: https, http, ssh, or user@host:path.
	URL string `json:"url"`
	// Revision is a branch, a tag or the full id of a commit. Defaults to the branch that the repository names.
	Revision string `json:"revision,omitempty"`
	// Folder is where it is cloned to, relative to the home folder. Defaults to Name.
	Folder string `json:"folder,omitempty"`
	// Depth is the number of commits of the branch; 0 for all. A commit as revision needs all.
	Depth int `json:"depth,omitempty"`
	// Remotes are further remotes, by their names.
	Remotes map[string]string `json:"remotes,omitempty"`
}

// Path is the folder that the project is cloned to, relative to the home folder.
func (p Project) Path() string {
	if p.Folder == "" {
		return filepath.Clean(p.Name)
	}
	return filepath.Clean(p.Folder)
}

// Validate returns the first fault.
func (p Project) Validate() error {
	for _, text := range []string{p.Name, p.URL, p.Revision, p.Folder} {
		if len(text) > maxText || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return fmt.Errorf("%.80q is too long, or has control characters", text)
		}
	}
	if p.Name == "" {
		return errors.New("name is empty")
	}
	path := p.Path()
	if !filepath.IsLocal(path) || path == "." || strings.HasPrefix(path, StateFolder) {
		return fmt.Errorf("folder %.80q is not a folder below the home folder", path)
	}
	if p.Depth < 0 {
		return fmt.Errorf("depth is %d; it must not be negative", p.Depth)
	}
	for name, address := range p.Remotes {
		if err := CheckURL(address); err != nil {
			return fmt.Errorf("remote %.80q: %w", name, err)
		}
	}
	return CheckURL(p.URL)
}

// shortSSH is git's short form of an address: user@host:path.
var shortSSH = regexp.MustCompile(`^[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:[^/].*$`)

// CheckURL accepts what a repository on another machine can have. A path or a file URL would read the files of the
// container that clones.
func CheckURL(address string) error {
	if shortSSH.MatchString(address) {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh") {
		return fmt.Errorf("%.200q is not the URL of a repository: want https, http or ssh", Redact(address))
	}
	if _, hasPassword := u.User.Password(); hasPassword {
		return fmt.Errorf("%.200q has a password: add it to the secret file %s instead", u.Redacted(), GitCredentials)
	}
	return nil
}

// Redact removes the password of a URL.
func Redact(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return address
}

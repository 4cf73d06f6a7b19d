package clone

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
)

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

// Validate returns the first fault.
func (p Project) Validate() error {
	if p.Name == "" {
		return errors.New("name is empty")
	}
	folder := filepath.Clean(p.folder())
	if !filepath.IsLocal(folder) || folder == "." || strings.HasPrefix(folder, ".lockstep") {
		return fmt.Errorf("folder %q is not a folder below the home folder", p.folder())
	}
	if p.Depth < 0 {
		return fmt.Errorf("depth is %d; it must not be negative", p.Depth)
	}
	for name, address := range p.Remotes {
		if err := checkURL(address); err != nil {
			return fmt.Errorf("remote %q: %w", name, err)
		}
	}
	return checkURL(p.URL)
}

func (p Project) folder() string {
	if p.Folder == "" {
		return p.Name
	}
	return p.Folder
}

// checkURL accepts what a repository on another machine can have. A path or a file URL would read the files of the
// container that clones.
func checkURL(address string) error {
	endpoint, err := transport.NewEndpoint(address)
	if err != nil {
		return fmt.Errorf("%q is not the URL of a repository: %w", redact(address), err)
	}
	switch endpoint.Protocol {
	case "https", "http", "ssh":
	default:
		return fmt.Errorf("%q is not the URL of a repository: want https, http or ssh", redact(address))
	}
	if endpoint.Password != "" {
		return fmt.Errorf("%q has a password: add it to the secret file %s instead", redact(address), credentialsFile)
	}
	return nil
}

// redact removes the password of a URL.
func redact(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return address
}

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/services/gateway/agent/clone"
)

const (
	// ConfigFile is the path of the configuration, unless the environment variable LOCKSTEP_WORKSPACE_CONFIG has another.
	ConfigFile = "/run/lockstep/workspace.json"
	// ConfigVariable is the environment variable with the path of the configuration.
	ConfigVariable = "LOCKSTEP_WORKSPACE_CONFIG"
	// ListenVariable is the environment variable with the address of the SSH server.
	ListenVariable = "LOCKSTEP_WORKSPACE_LISTEN"
	// Listen is the address of the SSH server, unless ListenVariable has another.
	Listen = ":2222"

	// maxConfig is the greatest size of the file in bytes.
	maxConfig = 1 << 20
	// stateFolder is the folder of the agent in the home folder.
	stateFolder = ".lockstep"
)

// Config is what the control plane tells the agent about its workspace. Unknown fields are ignored, since the control
// plane may be newer.
type Config struct {
	// Workspace is the id of the workspace: the only name of a user that SSH accepts.
	Workspace string `json:"workspace"`
	// Authorities are public keys in the format of authorized_keys. A user certificate that one of them has signed for
	// Workspace opens connections. The agent reads them again for each connection, so keys can be rotated.
	Authorities []string `json:"authorities"`
	// Home is the folder where shells start, on the volume of the workspace: an absolute path. The agent keeps its host
	// key in the folder .lockstep of it.
	Home string `json:"home"`
	// Projects are cloned into Home.
	Projects []clone.Project `json:"projects,omitempty"`
	// Credentials is the folder with the files for remote repositories; see [clone.Credentials]. Empty for none.
	Credentials string `json:"credentials,omitempty"`
	// PostStart are command lines for the shell. They run one after the other each time that the container starts.
	PostStart []Command `json:"post_start,omitempty"`
}

// Command is a command line for the shell.
type Command struct {
	Name string `json:"name"`
	Line string `json:"line"`
	// Folder where it runs, relative to Home. Defaults to Home.
	Folder string `json:"folder,omitempty"`
	// Env is added to the environment of the container: NAME=VALUE.
	Env []string `json:"env,omitempty"`
}

// LoadConfig reads and checks a file. The error names every fault.
func LoadConfig(path string) (Config, error) {
	var c Config
	info, err := os.Stat(path) //nolint:gosec // whoever starts the program chooses the file
	if err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	if info.Size() > maxConfig {
		return c, fmt.Errorf("the configuration %s has %d bytes; at most %d are allowed", path, info.Size(), maxConfig)
	}
	data, err := os.ReadFile(path) //nolint:gosec // see above
	if err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("the configuration %s is not valid: %w", path, err)
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("the configuration %s is not valid: %w", path, err)
	}
	return c, nil
}

// Validate returns all faults.
func (c Config) Validate() error {
	var faults []error
	if c.Workspace == "" {
		faults = append(faults, errors.New("workspace is empty"))
	}
	if !filepath.IsAbs(c.Home) {
		faults = append(faults, fmt.Errorf("home %q is not an absolute path", c.Home))
	}
	if _, err := c.AuthorityKeys(); err != nil {
		faults = append(faults, err)
	}
	for i, p := range c.Projects {
		if err := p.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("projects[%d]: %w", i, err))
		}
	}
	for i, p := range c.PostStart {
		if p.Line == "" {
			faults = append(faults, fmt.Errorf("post_start[%d]: line is empty", i))
		}
		if p.Folder != "" && !filepath.IsLocal(p.Folder) {
			faults = append(faults, fmt.Errorf("post_start[%d]: folder %q is not below home", i, p.Folder))
		}
	}
	return errors.Join(faults...)
}

// AuthorityKeys are the parsed Authorities.
func (c Config) AuthorityKeys() ([]ssh.PublicKey, error) {
	keys := make([]ssh.PublicKey, 0, len(c.Authorities))
	for i, text := range c.Authorities {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("authorities[%d] is not a public key: %w", i, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("authorities are empty: nobody could connect")
	}
	return keys, nil
}

// StateFolder is where the agent keeps its files.
func (c Config) StateFolder() string { return filepath.Join(c.Home, stateFolder) }

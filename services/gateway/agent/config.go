package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/workspaceagent"
)

// LoadConfig reads and checks a file. The error names every fault. Folders are below that of the environment variable
// [workspaceagent.RootVariable].
func LoadConfig(path string) (workspaceagent.Config, error) {
	info, err := os.Stat(path) //nolint:gosec // whoever starts the program chooses the file
	if err != nil {
		return workspaceagent.Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	if info.Size() > workspaceagent.MaxConfig {
		return workspaceagent.Config{}, fmt.Errorf("the configuration %s has %d bytes; at most %d are allowed",
			path, info.Size(), workspaceagent.MaxConfig)
	}
	data, err := os.ReadFile(path) //nolint:gosec // see above
	if err != nil {
		return workspaceagent.Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	c, err := workspaceagent.Parse(data)
	if err != nil {
		return c, fmt.Errorf("the configuration %s: %w", path, err)
	}
	if root := os.Getenv(workspaceagent.RootVariable); root != "" {
		if c.Home, err = filepath.EvalSymlinks(filepath.Join(root, c.Home)); err != nil {
			return c, fmt.Errorf("find the home folder: %w", err)
		}
		if c.Credentials != "" {
			c.Credentials = filepath.Join(root, c.Credentials)
		}
		if c.Editor != nil && c.Editor.Folder != "" {
			c.Editor.Folder = filepath.Join(root, c.Editor.Folder)
		}
	}
	if _, err := authorityKeys(c); err != nil {
		return c, fmt.Errorf("the configuration %s: %w", path, err)
	}
	return c, nil
}

// authorityKeys are the parsed keys of the authorities.
func authorityKeys(c workspaceagent.Config) ([]ssh.PublicKey, error) {
	keys := make([]ssh.PublicKey, 0, len(c.Authorities))
	for i, text := range c.Authorities {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("authorities[%d] is not a public key: %w", i, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

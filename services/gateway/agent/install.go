package agent

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lockstep.internal/libs/workspaceagent"
)

// Install copies the program at the path executable into a folder. A program that is there is replaced at once, so that
// nobody can start half of it.
func Install(executable, folder string) (installed string, err error) {
	source, err := os.Open(executable)
	if err != nil {
		return "", fmt.Errorf("install: %w", err)
	}
	defer source.Close() //nolint:errcheck // it was only read
	target, err := os.CreateTemp(folder, "."+workspaceagent.Program+"-*")
	if err != nil {
		return "", fmt.Errorf("install into %s: %w", folder, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(target.Name()) //nolint:gosec // the folder is an argument; the error that matters is returned
		}
	}()
	if _, err := io.Copy(target, source); err != nil {
		_ = target.Close()
		return "", fmt.Errorf("install into %s: %w", folder, err)
	}
	if err := target.Chmod(0o755); err != nil {
		_ = target.Close()
		return "", fmt.Errorf("install into %s: %w", folder, err)
	}
	if err := target.Close(); err != nil {
		return "", fmt.Errorf("install into %s: %w", folder, err)
	}
	installed = filepath.Join(folder, workspaceagent.Program)
	if err := os.Rename(target.Name(), installed); err != nil { //nolint:gosec // see above
		return "", fmt.Errorf("install into %s: %w", folder, err)
	}
	return installed, nil
}

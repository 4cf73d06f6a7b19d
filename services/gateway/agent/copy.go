package agent

import (
	"fmt"
	"os"
	"path/filepath"
)

// Copy replaces the content of the folder to by that of the folder from. Links are copied as they are, and files keep
// whether they can be executed.
func Copy(from, to string) error {
	info, err := os.Stat(from) //nolint:gosec // whoever starts the program names the folders
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("copy %s: it is not a folder", from)
	}
	// An earlier attempt may have been interrupted.
	before, err := os.ReadDir(to)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", to, err)
	}
	for _, entry := range before {
		if err := os.RemoveAll(filepath.Join(to, entry.Name())); err != nil { //nolint:gosec // see above
			return fmt.Errorf("copy to %s: %w", to, err)
		}
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	return nil
}

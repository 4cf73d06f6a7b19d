// Package tree compares and writes generated files.
//
// A [Tree] holds the expected files. [Tree.Differences] compares them with the disk, [Tree.Write]
// writes them. A folder may belong to the generator alone; then a file that is not in the tree is
// removed.
package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Tree holds generated files by slash-separated path below the root of the repository.
type Tree map[string][]byte

// ReadDir adds every file below a folder on disk, at the same path below prefix.
func (t Tree) ReadDir(dir, prefix string) error {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path) //nolint:gosec // Walks a folder that the caller names.
		if err != nil {
			return err //nolint:wrapcheck // Wrapped below.
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err //nolint:wrapcheck // Wrapped below.
		}
		t[prefix+"/"+filepath.ToSlash(relative)] = raw
		return nil
	})
	if err != nil {
		return fmt.Errorf("read generated files: %w", err)
	}
	return nil
}

// Differences returns a sentence for each difference between the tree and the disk, and for each
// further file in the owned folders.
func (t Tree) Differences(root string, owned []string) ([]string, error) {
	var sentences []string
	for _, path := range slices.Sorted(maps.Keys(t)) {
		current, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			sentences = append(sentences, path+": is missing: run make generate")
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", path, err)
		case !bytes.Equal(current, t[path]):
			sentences = append(sentences, path+": is stale: run make generate")
		}
	}
	left, err := t.leftovers(root, owned)
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		sentences = append(sentences, path+": has no source any more: run make generate")
	}
	return sentences, nil
}

// Write writes changed files, removes further files from the owned folders, and returns the changed
// paths.
func (t Tree) Write(root string, owned []string) ([]string, error) {
	var touched []string
	for _, path := range slices.Sorted(maps.Keys(t)) {
		target := filepath.Join(root, filepath.FromSlash(path))
		if current, err := os.ReadFile(target); err == nil && bytes.Equal(current, t[path]) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil { //nolint:gosec // Source folders are readable.
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
		if err := os.WriteFile(target, t[path], 0o644); err != nil { //nolint:gosec // Source files are readable.
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
		touched = append(touched, path)
	}
	left, err := t.leftovers(root, owned)
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		if err := os.Remove(filepath.Join(root, filepath.FromSlash(path))); err != nil {
			return nil, fmt.Errorf("remove %s: %w", path, err)
		}
		touched = append(touched, path)
	}
	return touched, nil
}

func (t Tree) leftovers(root string, owned []string) ([]string, error) {
	var left []string
	for _, folder := range owned {
		there := Tree{}
		err := there.ReadDir(filepath.Join(root, filepath.FromSlash(folder)), folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for path := range there {
			if _, ok := t[path]; !ok {
				left = append(left, path)
			}
		}
	}
	slices.Sort(left)
	return left, nil
}

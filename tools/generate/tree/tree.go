// Package tree compares and writes generated files.
//
// A [Tree] is what a part of the repository must hold; [Tree.Differences] says in sentences where
// the disk differs, [Tree.Write] makes it so. Both know which folders belong to the generator
// alone: a file there that is not in the tree is left over from something that is gone.
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

// Tree is generated files by their slash-separated path below the repository's root.
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

// Differences says, one sentence each, what on disk is not as the tree has it. Owned folders hold
// nothing but what is in the tree.
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
			sentences = append(sentences, path+": is not what its source says: run make generate")
		}
	}
	left, err := t.leftovers(root, owned)
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		sentences = append(sentences, path+": is generated from nothing any more: run make generate")
	}
	return sentences, nil
}

// Write writes what differs, removes what is left over, and returns the paths it touched.
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

package architecture

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Prefix of the import paths of everything in the tree.
const Prefix = "lockstep.internal/"

// Package is a package of the tree with the imports of all of its files, whatever their build tags.
type Package struct {
	Path        string   // import path
	Imports     []string // of the files that are linked into programs, sorted
	TestImports []string // of _test.go files, sorted
}

// Module is the content of a go.mod.
type Module struct {
	Dir      string // in the tree, with slashes: libs, tools/kubelab
	Path     string
	Go       string // version of the language
	Requires []Requirement
	Replaces []Replacement
}

// Requirement is one line of require.
type Requirement struct {
	Path, Version string
	Indirect      bool
}

// Replacement is one line of replace.
type Replacement struct {
	Path       string
	NewPath    string // a module, or a folder relative to the go.mod
	NewVersion string // empty for a folder
}

// Tree is the repository as the rules see it.
type Tree struct {
	Go       string   // version of the language in go.work
	Used     []string // folders of the modules in go.work
	Modules  []Module
	Packages []Package
}

// Root returns the folder with go.work, from the working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.work from the working directory upwards: run the test inside the repository")
		}
	}
}

// Files returns the files of the tree below root, relative to it and with slashes: sources, no
// version control and nothing built.
func Files(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return fmt.Errorf("name %s: %w", name, err)
		}
		relative = filepath.ToSlash(relative)
		switch {
		case entry.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "node_modules"}, entry.Name()):
			return fs.SkipDir
		case entry.Type().IsRegular() && relative != ".git": // .git is a file in a second working tree
			files = append(files, relative)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the tree: %w", err)
	}
	return files, nil
}

// Read reads the tree below root.
func Read(root string) (Tree, error) {
	files, err := Files(root)
	if err != nil {
		return Tree{}, err
	}
	var tree Tree
	if err := tree.readWorkspace(root); err != nil {
		return Tree{}, err
	}
	for _, file := range files {
		if path.Base(file) != "go.mod" {
			continue
		}
		module, err := readModule(root, file)
		if err != nil {
			return Tree{}, err
		}
		tree.Modules = append(tree.Modules, module)
	}
	if err := tree.readPackages(root, files); err != nil {
		return Tree{}, err
	}
	return tree, nil
}

func (t *Tree) readWorkspace(root string) error {
	var work struct {
		Go  string
		Use []struct{ DiskPath string }
	}
	if err := goEdit(&work, "work", filepath.Join(root, "go.work")); err != nil {
		return err
	}
	t.Go = work.Go
	for _, use := range work.Use {
		t.Used = append(t.Used, path.Clean(use.DiskPath))
	}
	return nil
}

func readModule(root, file string) (Module, error) {
	var mod struct {
		Module  struct{ Path string }
		Go      string
		Require []Requirement
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	if err := goEdit(&mod, "mod", filepath.Join(root, filepath.FromSlash(file))); err != nil {
		return Module{}, err
	}
	module := Module{Dir: path.Dir(file), Path: mod.Module.Path, Go: mod.Go, Requires: mod.Require}
	for _, r := range mod.Replace {
		module.Replaces = append(module.Replaces,
			Replacement{Path: r.Old.Path, NewPath: r.New.Path, NewVersion: r.New.Version})
	}
	return module, nil
}

// goEdit returns what the go command prints of a go.mod or go.work as JSON.
func goEdit(into any, kind, file string) error {
	cmd := exec.Command("go", kind, "edit", "-json", file) //nolint:gosec,noctx // reads one file of the tree
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("parse what go prints of %s: %w", file, err)
	}
	return nil
}

func (t *Tree) readPackages(root string, files []string) error {
	type imports struct{ program, test map[string]bool }
	byPath := map[string]imports{}
	for _, file := range files {
		if !strings.HasSuffix(file, ".go") || strings.Contains("/"+file, "/testdata/") {
			continue
		}
		pkg := strings.TrimSuffix(Prefix+path.Dir(file), "/.")
		if _, known := byPath[pkg]; !known {
			byPath[pkg] = imports{program: map[string]bool{}, test: map[string]bool{}}
		}
		into := byPath[pkg].program
		if strings.HasSuffix(file, "_test.go") {
			into = byPath[pkg].test
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(file)), nil,
			parser.ImportsOnly)
		if err != nil {
			return fmt.Errorf("read the imports of %s: %w", file, err)
		}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("read the imports of %s: %w", file, err)
			}
			into[imported] = true
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(byPath)) {
		t.Packages = append(t.Packages, Package{
			Path:        pkg,
			Imports:     slices.Sorted(maps.Keys(byPath[pkg].program)),
			TestImports: slices.Sorted(maps.Keys(byPath[pkg].test)),
		})
	}
	return nil
}

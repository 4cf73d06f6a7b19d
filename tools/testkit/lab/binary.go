package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// sources is where kubelab lives in the repository.
	sources = "tools/kubelab"
	program = "kubelab"
)

var (
	// ErrNoRepository is returned if neither a kubelab program nor the repository is found.
	ErrNoRepository = errors.New("no kubelab program found beside this program or in PATH, and no repository to build " +
		"it from the working directory upwards: install kubelab, or set " + BinaryVariable + " to its path")
	// ErrNoGo is returned if there is no kubelab program and the go command is missing.
	ErrNoGo = errors.New("the go command is needed to build kubelab and was not found: " +
		"install Go or set " + BinaryVariable + " to a kubelab program")
)

// Binary returns the path of the kubelab program, building it first when that is needed.
func Binary(ctx context.Context, opts Options) (string, error) {
	opts = opts.withDefaults()
	if opts.Binary == "" {
		opts.Binary = os.Getenv(BinaryVariable)
	}
	if opts.Binary != "" {
		if _, err := os.Stat(opts.Binary); err != nil { //nolint:gosec // a path from the caller
			return "", fmt.Errorf("find the kubelab program: %w", err)
		}
		return opts.Binary, nil
	}
	root, err := findRoot(opts.Root)
	if err == nil {
		if _, noGo := exec.LookPath("go"); noGo != nil {
			err = fmt.Errorf("%w: %w", ErrNoGo, noGo)
		}
	}
	if err != nil {
		if path := installed(opts.Path); path != "" {
			return path, nil
		}
		return "", err
	}
	b := builder{
		dir:      filepath.Join(root, sources),
		bin:      filepath.Join(root, "bin"),
		progress: opts.Progress,
	}
	return b.ensure(ctx)
}

// installed returns the first kubelab program in the folders; empty if there is none.
func installed(folders []string) string {
	for _, folder := range folders {
		// With a slash in the path, only this file is looked up.
		if path, err := exec.LookPath(filepath.Join(folder, program)); filepath.IsAbs(folder) && err == nil {
			return path
		}
	}
	return ""
}

func findRoot(root string) (string, error) {
	if root == "" {
		dir, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("find the working directory: %w", err)
		}
		for root = dir; ; root = filepath.Dir(root) {
			if _, err := os.Stat(filepath.Join(root, "go.work")); err == nil {
				break
			}
			if root == filepath.Dir(root) {
				return "", fmt.Errorf("%w (from %s)", ErrNoRepository, dir)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(root, sources, "go.mod")); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoRepository, err)
	}
	return root, nil
}

// builder rebuilds bin/kubelab when its sources have changed.
type builder struct {
	dir, bin string
	progress io.Writer
}

func (b builder) path() string { return filepath.Join(b.bin, program) }

// keyPath holds the key of the sources that the program was built from.
func (b builder) keyPath() string { return filepath.Join(b.bin, ".kubelab.key") }

func (b builder) ensure(ctx context.Context) (string, error) {
	key, err := b.key(ctx)
	if err != nil {
		return "", err
	}
	if b.current(key) {
		return b.path(), nil
	}
	if err := os.MkdirAll(b.bin, 0o755); err != nil { //nolint:gosec // holds programs, not secrets
		return "", fmt.Errorf("create the folder of programs: %w", err)
	}
	lock, err := b.lock(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if b.current(key) { // built by the process that had the lock
		return b.path(), nil
	}
	fresh := b.path() + ".new"
	if err := (build{dir: b.dir, output: fresh, progress: b.progress}).run(ctx); err != nil {
		return "", err
	}
	// The key is removed first: after a crash between the steps the program is rebuilt.
	err = errors.Join(remove(b.keyPath()), os.Rename(fresh, b.path()), os.WriteFile(b.keyPath(), []byte(key), 0o600))
	if err != nil {
		return "", fmt.Errorf("put the kubelab program in place: %w", err)
	}
	return b.path(), nil
}

func (b builder) current(key string) bool {
	stored, err := os.ReadFile(b.keyPath())
	if err != nil || string(stored) != key {
		return false
	}
	_, err = os.Stat(b.path())
	return err == nil
}

// key is a digest of what the program is built from: the sources, and the Go version and platform.
func (b builder) key(ctx context.Context) (string, error) {
	env := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH", "GOFLAGS")
	env.Dir, env.Env = b.dir, buildEnvironment()
	toolchain, err := env.Output()
	if err != nil {
		return "", fmt.Errorf("read the Go version: %w", err)
	}
	sum := sha256.New()
	_, _ = sum.Write(toolchain)
	var files []string
	err = filepath.WalkDir(b.dir, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		source := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
		if err == nil && !entry.IsDir() && (source || name == "go.mod" || name == "go.sum") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("list kubelab's sources: %w", err)
	}
	slices.Sort(files)
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read kubelab's sources: %w", err)
		}
		relative, err := filepath.Rel(b.dir, path)
		if err != nil {
			return "", fmt.Errorf("relative path of a source file: %w", err)
		}
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", relative, len(content), content)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// lock waits until no other process builds.
func (b builder) lock(ctx context.Context) (io.Closer, error) {
	file, err := os.OpenFile(filepath.Join(b.bin, ".kubelab.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the build: %w", err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for reported := false; ; reported = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock the build: %w", err), file.Close())
		}
		if !reported {
			_, _ = fmt.Fprintln(b.progress, "waiting for another process that is building the Kubernetes control plane")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another build: %w", context.Cause(ctx)), file.Close())
		}
	}
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// buildEnvironment returns the environment for go build without go.work.
func buildEnvironment() []string {
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=")
}

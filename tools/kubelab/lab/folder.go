package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"lockstep.internal/tools/kubelab/pki"
	"lockstep.internal/tools/kubelab/process"
)

const (
	runPrefix = "kubelab-"
	lockFile  = "lock"
	stateFile = "lab.json"
	// lockPatience is how long a lab waits for the end of the one before it in its data folder, whose parent was killed.
	lockPatience = 15 * time.Second
	lockInterval = 100 * time.Millisecond
	// sweepAge: younger folders are not removed; their lab may not have locked them yet.
	sweepAge = time.Minute
)

var errInUse = errors.New("in use by another lab")

// folder has the files of one lab.
type folder struct {
	// run is removed at the end: it has the sockets, and the data of a temporary lab.
	run string
	// data has the database, the certificates, the kubeconfig and the log.
	data      string
	temporary bool
	locks     []*os.File
}

// state is stored with a lab's data.
type state struct {
	// Port of the API server.
	Port int `json:"port"`
}

// openFolder locks data, or a new temporary folder when data is empty.
func openFolder(ctx context.Context, data string) (*folder, error) {
	run, err := os.MkdirTemp("", runPrefix)
	if err != nil {
		return nil, fmt.Errorf("create a temporary folder: %w", err)
	}
	f := &folder{run: run, data: data, temporary: data == ""}
	if f.temporary {
		f.data = filepath.Join(run, "data")
	}
	if f.data, err = filepath.Abs(f.data); err != nil {
		return nil, errors.Join(fmt.Errorf("resolve the data folder: %w", err), f.close())
	}
	for _, dir := range []string{f.etcd(), f.components()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, errors.Join(fmt.Errorf("create a data folder: %w", err), f.close())
		}
	}
	for _, dir := range []string{f.run, f.data} {
		lock, err := awaitLock(ctx, filepath.Join(dir, lockFile))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.close())
		}
		f.locks = append(f.locks, lock)
	}
	return f, nil
}

// close releases the folder and removes what is temporary.
func (f *folder) close() error {
	err := os.RemoveAll(f.run)
	for _, lock := range f.locks {
		err = errors.Join(err, lock.Close())
	}
	return err
}

func (f *folder) etcd() string         { return filepath.Join(f.data, "etcd") }
func (f *folder) components() string   { return filepath.Join(f.data, "components") }
func (f *folder) pki() string          { return filepath.Join(f.data, "pki") }
func (f *folder) kubeletCerts() string { return filepath.Join(f.run, "kubelets") }
func (f *folder) pods() string         { return filepath.Join(f.run, "pods") }
func (f *folder) volumes() string      { return filepath.Join(f.data, "volumes") }
func (f *folder) log() string          { return filepath.Join(f.data, "kubelab.log") }
func (f *folder) kubeconfig() string   { return filepath.Join(f.data, "kubeconfig") }

func (f *folder) loadState() (state, error) {
	var s state
	content, err := os.ReadFile(filepath.Join(f.data, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read the lab's state: %w", err)
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return s, fmt.Errorf("read the lab's state in %s: %w", f.data, err)
	}
	return s, nil
}

func (f *folder) saveState(s state) error {
	content, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the lab's state: %w", err)
	}
	return pki.WriteFile(filepath.Join(f.data, stateFile), content)
}

// awaitLock takes a lock that another lab may be about to release.
func awaitLock(ctx context.Context, path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	tick := time.NewTicker(lockInterval)
	defer tick.Stop()
	for {
		lock, err := takeLock(path, os.O_CREATE)
		if !errors.Is(err, errInUse) {
			return lock, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// takeLock holds path until the file is closed, or the process ends.
func takeLock(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errInUse
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sweep removes leftovers of killed labs in the temporary folder.
func sweep(now time.Time) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), runPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, lockFile)
		info, err := os.Stat(path)
		if err != nil || now.Sub(info.ModTime()) < sweepAge {
			continue
		}
		// Not created: its lab may be removing the folder, which a new file would prevent.
		lock, err := takeLock(path, 0)
		if err != nil {
			continue
		}
		process.KillIn(dir)
		// The next sweep retries.
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
}

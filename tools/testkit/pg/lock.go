package pg

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// folderLock marks a folder as used by this process; the kernel releases it when the process ends.
type folderLock struct{ file *os.File }

// lockFolder creates the lock file if necessary.
func lockFolder(path string) (*folderLock, error) { return lockFile(path, os.O_CREATE) }

func lockFile(path string, flags int) (*folderLock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (lock file %s)", ErrInUse, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &folderLock{file: file}, nil
}

// release unlocks, because closing is not enough: a process that is being started may still have the file.
func (l *folderLock) release() {
	if l != nil {
		_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
		_ = l.file.Close()
	}
}

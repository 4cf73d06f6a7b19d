package pg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the OS user that runs the server. PostgreSQL refuses to run as root.
type account struct {
	name       string
	credential *syscall.Credential // nil: this process's own user
}

func chooseAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody", "daemon"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(found.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(found.Gid, 10, 32)
		if err != nil {
			continue
		}
		return account{name: name, credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return account{}, errors.New(
		"PostgreSQL does not run as root and this machine has neither user postgres nor nobody: run as another user",
	)
}

// apply makes the command run as the account, in its own process group, with an accessible working directory.
func (a account) apply(cmd *exec.Cmd, folder string) {
	cmd.Dir = folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential}
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
}

// chown changes the owner of the folder, recursively, and makes it private.
func (a account) chown(folder string) error {
	if err := os.Chmod(folder, 0o700); err != nil { //nolint:gosec // a folder needs its x bit
		return fmt.Errorf("make folder %s private: %w", folder, err)
	}
	if a.credential == nil {
		return nil
	}
	// os.Root prevents symlinks from escaping the folder.
	root, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("open folder %s: %w", folder, err)
	}
	defer func() { _ = root.Close() }()
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, int(a.credential.Uid), int(a.credential.Gid))
	})
	if err != nil {
		return fmt.Errorf("give folder %s to user %s: %w", folder, a.name, err)
	}
	return nil
}

// checkAccess checks that the account can enter every parent directory, to name the one that it cannot.
func (a account) checkAccess(folder string) error {
	if a.credential == nil {
		return nil
	}
	for parent := filepath.Dir(folder); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil {
			return fmt.Errorf("check access to %s: %w", parent, err)
		}
		enter := fs.FileMode(0o001)
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			switch {
			case owner.Uid == a.credential.Uid:
				enter = 0o100
			case owner.Gid == a.credential.Gid:
				enter = 0o010
			}
		}
		if info.Mode()&enter == 0 {
			return fmt.Errorf("PostgreSQL does not run as root, and user %s cannot enter %s: "+
				"choose another data folder, or run as another user", a.name, parent)
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

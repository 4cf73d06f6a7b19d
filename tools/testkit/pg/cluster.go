package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A server's folder:
//
//	<home>/lock         locked while a process uses the folder
//	<home>/password     of the superuser; readable by the owner only
//	<home>/log          what postgres printed in its last run
//	<home>/data/        PostgreSQL's own
//	<socket>/.s.PGSQL.<port>   in a short temporary folder: socket paths may have about 100 bytes
const temporaryPrefix = "lockstep-pg-"

// cluster is the folder of a server's data.
type cluster struct {
	home      string
	temporary bool
	account   account
	inst      installation
	lock      *folderLock
	password  string
}

func (c *cluster) data() string    { return filepath.Join(c.home, "data") }
func (c *cluster) logFile() string { return filepath.Join(c.home, "log") }

func openCluster(ctx context.Context, opts Options) (*cluster, error) {
	acc, err := chooseAccount()
	if err != nil {
		return nil, err
	}
	c := &cluster{account: acc, temporary: opts.Data == ""}
	if c.temporary {
		c.home, err = os.MkdirTemp("", temporaryPrefix)
	} else {
		c.home, err = filepath.Abs(opts.Data)
		if err == nil {
			err = os.MkdirAll(c.home, 0o700)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create the data folder: %w", err)
	}
	if c.lock, err = lockFolder(filepath.Join(c.home, "lock")); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx, opts); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) prepare(ctx context.Context, opts Options) error {
	if err := c.account.checkAccess(c.home); err != nil {
		return err
	}
	version, err := dataVersion(c.data())
	if err != nil {
		return err
	}
	if c.inst, err = findInstallation(ctx, opts.Binaries, version); err != nil {
		return err
	}
	if c.temporary {
		removeOrphans(ctx, c.inst, c.account)
	}
	if version == 0 {
		opts.Progress(fmt.Sprintf("creating a PostgreSQL %d cluster in %s", c.inst.major, c.home))
		if err := c.initialize(ctx); err != nil {
			return err
		}
	} else if err := stopOrphan(ctx, c.inst, c.account, c.data()); err != nil {
		return err
	}
	password, err := os.ReadFile(filepath.Join(c.home, "password"))
	if err != nil {
		return fmt.Errorf("read the superuser's password: %w", err)
	}
	c.password = strings.TrimSpace(string(password))
	return c.account.chown(c.home)
}

// initialize runs initdb in a temporary folder and renames it, so that an interrupted run leaves no partial cluster.
func (c *cluster) initialize(ctx context.Context) error {
	fresh := filepath.Join(c.home, "data.new")
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("clear an interrupted initialization: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.home, "password"), []byte(rand.Text()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the superuser's password: %w", err)
	}
	if err := c.account.chown(c.home); err != nil {
		return err
	}
	args := []string{
		"--pgdata", fresh, "--username", User, "--pwfile", filepath.Join(c.home, "password"),
		"--auth-local", "trust", "--auth-host", "scram-sha-256",
		"--encoding", "UTF8", "--locale", "C", "--no-instructions",
	}
	if c.temporary {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, c.inst.path("initdb"), args...) //nolint:gosec // the installation's own program
	c.account.apply(cmd, c.home)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create a cluster with initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(fresh, c.data()); err != nil {
		return fmt.Errorf("rename the new cluster: %w", err)
	}
	return nil
}

// arguments returns the settings of one run as command line flags: the cluster's configuration files do not change.
func (c *cluster) arguments(opts Options, port int, socket string) []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": socket,
		"max_connections":         strconv.Itoa(opts.MaxConnections),
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"lc_messages":             "C",
		"jit":                     "off",
	}
	if c.temporary {
		// Without fsync a power loss may corrupt the data; killing the server does not. synchronous_commit stays on,
		// so that committed data survives a kill.
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
		settings["max_wal_size"] = "2GB"
	}
	maps.Copy(settings, opts.Settings)
	args := make([]string, 0, 2*len(settings))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// close releases the folder; it removes a temporary one.
func (c *cluster) close() error {
	var err error
	if c.temporary {
		if err = os.RemoveAll(c.home); err != nil {
			err = fmt.Errorf("remove the temporary data folder: %w", err)
		}
	}
	c.lock.release()
	return err
}

// removeOrphans clears what processes that were killed left in the temporary folder. It is best effort: it
// skips folders that it cannot check or remove.
func removeOrphans(ctx context.Context, inst installation, acc account) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	homes, err := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	if err != nil {
		return
	}
	for _, home := range homes {
		info, err := os.Stat(home)
		// A folder this young may belong to a process that has not locked it yet.
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		// Not created: its process may be removing the folder, which a new file would prevent. Without a lock file
		// no process uses the folder.
		lock, err := lockFile(filepath.Join(home, "lock"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if stopOrphan(ctx, inst, acc, filepath.Join(home, "data")) == nil {
			_ = os.RemoveAll(home)
		}
		lock.release()
	}
}

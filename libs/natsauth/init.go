package natsauth

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/nkeys"
)

const (
	configExtension             = ".conf"
	configName                  = "nats-server" + configExtension
	configFileMode  fs.FileMode = 0o644
)

// Change is what [Init] did to one file.
type Change string

const (
	// Created means that the file was not there before.
	Created Change = "created"
	// Kept means that the file already had this content.
	Kept Change = "kept"
	// Moved means that the key was in the folder of another program.
	Moved Change = "moved"
	// Updated means that the file had other content. Only the configuration is updated, never a key.
	Updated Change = "updated"
)

// File is the result for one file.
type File struct {
	// Path begins with the folder given to [Init].
	Path   string
	Change Change
}

// Report is the result of [Init].
type Report struct {
	// ConfigFile is the path for nats-server -c; in a cluster, that of its first server.
	ConfigFile string
	// Files are the configurations and all keys in a fixed order.
	Files []File
}

// Changed reports whether a file changed.
func (r Report) Changed() bool {
	for _, f := range r.Files {
		if f.Change != Kept {
			return true
		}
	}

	return false
}

// RestartNeeded reports whether a running server has to read the configuration again. A reload is not enough:
// nats-server refuses to reload a configuration with other users of the auth callout.
func (r Report) RestartNeeded() bool {
	return slices.ContainsFunc(r.Files, func(f File) bool { return f.Change == Updated })
}

// ConfigFile is where [Init] puts the configuration of a single server.
func ConfigFile(dir string) string {
	return filepath.Join(dir, configName)
}

// Init writes the server's configuration and every missing key into the folder, which it creates if necessary. It
// is idempotent and safe to run concurrently: keys are never replaced, and the configuration has the options of the
// last run. The configuration contains public keys only and no path of the folder, so it may be mounted anywhere.
// Errors wrap [ErrInvalidOptions] or [ErrUnusableKey] if those are the reason. No file is overwritten in that case.
func Init(dir string, options Options) (Report, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return Report{}, err
	}

	report := Report{}

	key := func(name string, kind nkeys.PrefixByte) (string, error) {
		path := SeedFile(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), keyDirMode); err != nil {
			return "", fmt.Errorf("create key folder: %w", err)
		}

		moved, err := moveKey(dir, name)
		if err != nil {
			return "", err
		}

		public, change, err := ensureKey(path, kind)
		if err != nil {
			return "", err
		}

		if moved {
			change = Moved
		}

		report.Files = append(report.Files, File{path, change})

		return public, nil
	}

	issuer, err := key(nameIssuer, nkeys.PrefixByteAccount)
	if err != nil {
		return Report{}, err
	}

	exchange, err := key(nameExchange, nkeys.PrefixByteCurve)
	if err != nil {
		return Report{}, err
	}

	users := make([]staticUser, 0, len(options.principals()))

	for _, p := range options.principals() {
		public, err := key(p.Name, nkeys.PrefixByteUser)
		if err != nil {
			return Report{}, err
		}

		users = append(users, staticUser{p, public})
	}

	var written []File

	configurations := options.configurations()

	for _, name := range slices.Sorted(maps.Keys(configurations)) {
		path := filepath.Join(dir, name)

		change, err := writeConfig(path, renderConfig(configurations[name], issuer, exchange, users))
		if err != nil {
			return Report{}, err
		}

		written = append(written, File{path, change})
	}

	report.ConfigFile, report.Files = written[0].Path, append(written, report.Files...)

	return report, nil
}

func writeConfig(path string, content []byte) (Change, error) {
	change := Updated

	before, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		change = Created
	case err != nil:
		return "", fmt.Errorf("read configuration: %w", err)
	case bytes.Equal(before, content):
		return Kept, nil
	}

	temp, err := writeTemp(path, content, configFileMode)
	if err != nil {
		return "", err
	}

	if err := os.Rename(temp, path); err != nil {
		return "", errors.Join(fmt.Errorf("replace configuration: %w", err), os.Remove(temp))
	}

	return change, nil
}

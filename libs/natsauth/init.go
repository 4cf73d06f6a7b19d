package natsauth

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"
)

const (
	configName                 = "nats-server.conf"
	configFileMode fs.FileMode = 0o644
)

// Change is what [Init] did to one file.
type Change string

const (
	// Created means that the file was not there before.
	Created Change = "created"
	// Kept means that the file was right already.
	Kept Change = "kept"
	// Updated means that the file was there with other content. Only the configuration is ever
	// updated.
	Updated Change = "updated"
)

// File is one line of a [Report].
type File struct {
	// Path begins with the folder given to [Init].
	Path   string
	Change Change
}

// Report says what [Init] did.
type Report struct {
	// ConfigFile is what nats-server -c takes.
	ConfigFile string
	// Files are the configuration and all keys in a fixed order.
	Files []File
}

// Changed says whether anything is other than before; a server that runs must then be reloaded.
func (r Report) Changed() bool {
	for _, f := range r.Files {
		if f.Change != Kept {
			return true
		}
	}

	return false
}

// ConfigFile is where [Init] puts the server's configuration.
func ConfigFile(dir string) string {
	return filepath.Join(dir, configName)
}

// Init writes the server's configuration and every key that is missing into the folder, creating it
// if need be. It may be run again at any time, also twice at once: keys are never replaced, the
// configuration always shows the options last given. The configuration holds public keys only and
// no path of the folder, so it may be mounted anywhere. Errors wrap [ErrInvalidOptions] or
// [ErrUnusableKey] where those are the reason; nothing is then written over.
func Init(dir string, options Options) (Report, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return Report{}, err
	}

	if err := os.MkdirAll(filepath.Join(dir, keyDir), keyDirMode); err != nil {
		return Report{}, fmt.Errorf("create key folder: %w", err)
	}

	report := Report{ConfigFile: ConfigFile(dir)}

	key := func(name string, kind nkeys.PrefixByte) (string, error) {
		path := SeedFile(dir, name)

		public, change, err := ensureKey(path, kind)
		if err != nil {
			return "", err
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

	change, err := writeConfig(report.ConfigFile, renderConfig(options, issuer, exchange, users))
	if err != nil {
		return Report{}, err
	}

	report.Files = append([]File{{report.ConfigFile, change}}, report.Files...)

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

package disk

import (
	"path/filepath"

	"lockstep.internal/libs/config"
)

// Config of a store.
type Config struct {
	Folder string `yaml:"folder" help:"existing folder with the content of artifacts; replicas share it"`
}

// Problems returns the errors of the settings if this store is used.
func (c Config) Problems() []error {
	if !filepath.IsAbs(c.Folder) {
		return []error{config.Invalid("disk.folder", "%q is not an absolute path: name a folder that exists", c.Folder)}
	}
	return nil
}

package objects

import (
	"fmt"

	"lockstep.internal/services/runners/objects/disk"
	"lockstep.internal/services/runners/objects/s3"
)

// Kinds of stores.
const (
	KindDisk = "disk"
	KindS3   = "s3"
)

// Config of a store.
type Config struct {
	Kind string      `yaml:"kind" oneof:"disk|s3" help:"where the content of artifacts is: a folder, or a bucket of a store that speaks S3"`
	Disk disk.Config `yaml:"disk" help:"used if kind is disk"`
	S3   s3.Config   `yaml:"s3" help:"used if kind is s3"`
}

// DefaultConfig returns a store on disk. Its folder has no default.
func DefaultConfig() Config { return Config{Kind: KindDisk, S3: s3.DefaultConfig()} }

// Validate returns the errors of the settings of the chosen store. The others are ignored.
func (c Config) Validate() []error {
	switch c.Kind {
	case KindDisk:
		return c.Disk.Problems()
	case KindS3:
		return c.S3.Problems()
	default:
		return nil // the tag oneof reports it
	}
}

// Open returns the store. It does not connect: Check does.
func Open(cfg Config) (Store, error) {
	switch cfg.Kind {
	case KindDisk:
		return disk.New(cfg.Disk), nil
	case KindS3:
		store, err := s3.New(cfg.S3)
		if err != nil {
			return nil, fmt.Errorf("artifacts in S3: %w", err)
		}
		return store, nil
	default:
		return nil, fmt.Errorf("kind %q: use disk or s3", cfg.Kind)
	}
}

package signing

import (
	"fmt"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/seal"
)

// Config locates the key that seals the signing keys.
type Config struct {
	KeyFile config.Secret `yaml:"key_file" help:"file with the X25519 seed (nkeys) that seals the keys of job tokens in the database; all replicas need the same one; with another one, new keys are created and tokens of running jobs remain valid"`
}

// Open reads the key. An error names the setting.
func (c Config) Open() (seal.Key, error) {
	seed, err := c.KeyFile.Read()
	if err != nil {
		return seal.Key{}, fmt.Errorf("signing.key_file: %w", err)
	}
	key, err := seal.ParseKey(seed)
	if err != nil {
		return seal.Key{}, fmt.Errorf("signing.key_file: %w", err)
	}
	return key, nil
}

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
	keyDir       = "keys"
	keySuffix    = ".seed"
	nameIssuer   = "issuer"
	nameExchange = "exchange"

	keyFileMode fs.FileMode = 0o600
	keyDirMode  fs.FileMode = 0o700
)

// ErrUnusableKey is wrapped by errors about key files that exist but have invalid content.
var ErrUnusableKey = errors.New("unusable key file")

// SeedFile is the path of the nkey seed of the static principal with this name, below the folder given to [Init]. Pass
// it to nats.NkeyOptionFromSeed. Each program that holds keys has a folder of its own, which can be mounted alone: keys
// for the state service, and others with the name of their principal.
func SeedFile(dir, principal string) string {
	folder := holder(principal)
	if folder == PrincipalState {
		folder = keyDir
	}

	return filepath.Join(dir, folder, principal+keySuffix)
}

// CalloutKeys are the keys with which a responder signs and decrypts. The holder of the issuer key can create users
// of every account except the system's: protect it like the database.
type CalloutKeys struct {
	// Issuer signs users and answers. It is an account nkey.
	Issuer nkeys.KeyPair
	// Exchange decrypts requests, which contain the tokens of clients, and encrypts answers. It is
	// a curve nkey.
	Exchange nkeys.KeyPair
}

// LoadCalloutKeys reads the responder's keys from the folder given to [Init].
func LoadCalloutKeys(dir string) (CalloutKeys, error) {
	issuer, err := loadKey(SeedFile(dir, nameIssuer), nkeys.PrefixByteAccount)
	if err != nil {
		return CalloutKeys{}, err
	}

	exchange, err := loadKey(SeedFile(dir, nameExchange), nkeys.PrefixByteCurve)
	if err != nil {
		return CalloutKeys{}, err
	}

	return CalloutKeys{Issuer: issuer, Exchange: exchange}, nil
}

func loadKey(path string, kind nkeys.PrefixByte) (nkeys.KeyPair, error) {
	seed, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	defer clear(seed)

	return parseKey(path, seed, kind)
}

func parseKey(path string, seed []byte, kind nkeys.PrefixByte) (nkeys.KeyPair, error) {
	seed = bytes.TrimSpace(seed)

	prefix, _, err := nkeys.DecodeSeed(seed)
	if err != nil {
		return nil, fmt.Errorf("%w: %s holds no nkey seed; restore it from a backup or move it away: %w",
			ErrUnusableKey, path, err)
	}

	if prefix != kind {
		return nil, fmt.Errorf("%w: %s holds a key for %s, not for %s; restore it from a backup or move it away",
			ErrUnusableKey, path, prefix, kind)
	}

	pair, err := fromSeed(seed, kind)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusableKey, path, err)
	}

	return pair, nil
}

func fromSeed(seed []byte, kind nkeys.PrefixByte) (nkeys.KeyPair, error) {
	if kind == nkeys.PrefixByteCurve {
		return nkeys.FromCurveSeed(seed) //nolint:wrapcheck // wrapped by the caller
	}

	return nkeys.FromSeed(seed) //nolint:wrapcheck // wrapped by the caller
}

// ensureKey creates the key file if it does not exist, and returns its public key.
func ensureKey(path string, kind nkeys.PrefixByte) (string, Change, error) {
	change := Kept

	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		change, err = createKey(path, kind)
	}

	if err != nil {
		return "", "", fmt.Errorf("key file %s: %w", path, err)
	}

	info, err := os.Stat(path)
	if err != nil {
		return "", "", fmt.Errorf("key file: %w", err)
	}

	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", "", fmt.Errorf("%w: %s is open to others (%04o); run chmod 600 on it, and replace it if it was read",
			ErrUnusableKey, path, mode)
	}

	pair, err := loadKey(path, kind)
	if err != nil {
		return "", "", err
	}
	defer pair.Wipe()

	public, err := pair.PublicKey()
	if err != nil {
		return "", "", fmt.Errorf("public key of %s: %w", path, err)
	}

	return public, change, nil
}

// createKey uses a hard link, which fails if the file exists. So concurrent runs keep the first key.
func createKey(path string, kind nkeys.PrefixByte) (Change, error) {
	pair, err := nkeys.CreatePair(kind)
	if kind == nkeys.PrefixByteCurve {
		pair, err = nkeys.CreateCurveKeys()
	}

	if err != nil {
		return "", fmt.Errorf("generate: %w", err)
	}
	defer pair.Wipe()

	seed, err := pair.Seed()
	if err != nil {
		return "", fmt.Errorf("seed: %w", err)
	}
	defer clear(seed)

	temp, err := writeTemp(path, append(seed, '\n'), keyFileMode)
	if err != nil {
		return "", err
	}
	defer os.Remove(temp) //nolint:errcheck // the link is what counts

	switch err := os.Link(temp, path); {
	case errors.Is(err, fs.ErrExist):
		return Kept, nil
	case err != nil:
		return "", fmt.Errorf("create: %w", err)
	}

	return Created, nil
}

// moveKey moves a key from the folder that once had all keys. It replaces no file.
func moveKey(dir, principal string) (bool, error) {
	from, to := filepath.Join(dir, keyDir, principal+keySuffix), SeedFile(dir, principal)

	switch err := os.Link(from, to); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("move key file: %w", err)
	}

	if err := os.Remove(from); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("move key file: %w", err)
	}

	return true, nil
}

// writeTemp writes a complete, synced file beside path and returns its name.
func writeTemp(path string, content []byte, mode fs.FileMode) (string, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return "", fmt.Errorf("create temporary file: %w", err)
	}

	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err != nil {
		return "", errors.Join(fmt.Errorf("write %s: %w", file.Name(), err), os.Remove(file.Name()))
	}

	return file.Name(), nil
}

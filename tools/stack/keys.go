package stack

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/tools/pgroles"
)

// Keys are the files that the state service keeps secrets with, and the first administrator's
// token.
type Keys struct {
	SealSeedFile, DigestKeyFile, AdminTokenFile string
}

// InitKeys makes the keys of a state service that are missing in a folder, each readable by its
// owner only. It never replaces a file. The map reports which files were created.
func InitKeys(dir string) (Keys, map[string]bool, error) {
	keys := Keys{
		SealSeedFile:   filepath.Join(dir, "seal.seed"),
		DigestKeyFile:  filepath.Join(dir, "digest.key"),
		AdminTokenFile: filepath.Join(dir, "admin.token"),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return keys, nil, fmt.Errorf("create the folder of keys: %w", err)
	}
	made := map[string]bool{}
	for path, generate := range map[string]func() (string, error){
		keys.SealSeedFile:   sealSeed,
		keys.DigestKeyFile:  func() (string, error) { return seal.GenerateDigestKey().Encode().Reveal(), nil },
		keys.AdminTokenFile: func() (string, error) { return natsauth.NewToken(natsauth.TokenPersonal), nil },
	} {
		created, err := writeOnce(path, generate)
		if err != nil {
			return keys, nil, fmt.Errorf("create %s: %w", path, err)
		}
		made[path] = created
	}
	return keys, made, nil
}

// signingSeed is the name of the file with the key that seals the signing keys of the runners service.
const signingSeed = "signing.seed"

// InitRunners makes the key that seals the signing keys of the runners service, if it is missing in a folder, and
// returns its path. It never replaces a file. created reports whether the key was made.
func InitRunners(dir string) (path string, created bool, err error) {
	return initSeal(dir, signingSeed)
}

func initSeal(dir, name string) (path string, created bool, err error) {
	path = filepath.Join(dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return path, false, fmt.Errorf("create the folder of keys: %w", err)
	}
	if created, err = writeOnce(path, sealSeed); err != nil {
		return path, false, fmt.Errorf("create %s: %w", path, err)
	}
	return path, created, nil
}

// controllersSeed is the name of the file with the key that seals the signing secrets of admission controllers.
const controllersSeed = "controllers.seed"

// InitAdmission makes the key that seals the signing secrets of admission controllers, as [InitRunners] does its key.
func InitAdmission(dir string) (path string, created bool, err error) {
	return initSeal(dir, controllersSeed)
}

// GatewayKeys are the files with the keys of a gateway.
type GatewayKeys struct {
	// AuthorityFile, HostFile and PersonFile are SSH keys: of certificates for workspaces, of the SSH server, and of what
	// the gateway does for people. CookiesFile encrypts cookies.
	AuthorityFile, HostFile, PersonFile, CookiesFile string
}

// InitGateway makes the keys of a gateway that are missing in a folder, each readable by its owner only. It never
// replaces a file. The map reports which files were created.
func InitGateway(dir string) (keys GatewayKeys, created map[string]bool, err error) {
	keys = GatewayKeys{
		AuthorityFile: filepath.Join(dir, "authority.key"), HostFile: filepath.Join(dir, "host.key"),
		PersonFile: filepath.Join(dir, "person.key"), CookiesFile: filepath.Join(dir, "cookies.key"),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return keys, nil, fmt.Errorf("create the folder of keys: %w", err)
	}
	created = map[string]bool{}
	for path, generate := range map[string]func() (string, error){
		keys.AuthorityFile: sshKey, keys.HostFile: sshKey, keys.PersonFile: sshKey,
		keys.CookiesFile: func() (string, error) { return session.GenerateKey(), nil },
	} {
		if created[path], err = writeOnce(path, generate); err != nil {
			return keys, nil, fmt.Errorf("create %s: %w", path, err)
		}
	}
	return keys, created, nil
}

// PublicKey returns the public key of a file with a private SSH key, such as ssh-ed25519 AAAA…
func PublicKey(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read a key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return "", fmt.Errorf("read the key %s: %w", file, err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), nil
}

// sshKey returns a new private key, without a line break at its end.
func sshKey() (string, error) {
	key, err := authority.Generate()
	return strings.TrimSuffix(string(key), "\n"), err
}

// InitDatabase makes the passwords of the services' database roles that are missing in a folder: <service>/password. It
// never replaces a file. The map reports which files were created.
func InitDatabase(dir string) (passwords map[string]string, created map[string]bool, err error) {
	passwords, created = map[string]string{}, map[string]bool{}
	for _, service := range pgroles.Services() {
		path := filepath.Join(dir, service, "password")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, nil, fmt.Errorf("create the folder of a password: %w", err)
		}
		if created[path], err = writeOnce(path, func() (string, error) { return rand.Text(), nil }); err != nil {
			return nil, nil, fmt.Errorf("create %s: %w", path, err)
		}
		if passwords[service], err = config.SecretFile(path).Read(); err != nil {
			return nil, nil, fmt.Errorf("read the password of %s: %w", service, err)
		}
	}
	return passwords, created, nil
}

// CopyAdminToken writes the first administrator's token to a file in another folder, for the command line, and reports
// whether it was created.
func (k Keys) CopyAdminToken(file string) (bool, error) { return copyOnce(k.AdminTokenFile, file) }

func sealSeed() (string, error) {
	key, err := seal.GenerateKey()
	if err != nil {
		return "", fmt.Errorf("create a key: %w", err)
	}
	seed, err := key.Seed()
	if err != nil {
		return "", fmt.Errorf("create a key: %w", err)
	}
	return seed.Reveal(), nil
}

// copyOnce copies a text file, or leaves a copy that is there.
func copyOnce(from, to string) (bool, error) {
	created, err := writeOnce(to, func() (string, error) {
		raw, err := os.ReadFile(from)
		return strings.TrimSuffix(string(raw), "\n"), err
	})
	if err != nil {
		return false, fmt.Errorf("create %s: %w", to, err)
	}
	return created, nil
}

// writeOnce creates the file whole, or leaves one that is there.
func writeOnce(path string, generate func() (string, error)) (bool, error) {
	if _, err := os.Stat(path); err == nil {
		return false, nil
	}
	value, err := generate()
	if err != nil {
		return false, err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return false, fmt.Errorf("create: %w", err)
	}
	defer os.Remove(temporary.Name()) //nolint:errcheck // gone after the link below, or of no use
	_, writeErr := temporary.WriteString(value + "\n")
	if err := errors.Join(writeErr, temporary.Close()); err != nil {
		return false, fmt.Errorf("write: %w", err)
	}
	err = os.Link(temporary.Name(), path)
	if errors.Is(err, os.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("put in place: %w", err)
	}
	return true, nil
}
